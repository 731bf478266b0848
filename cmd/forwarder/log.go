package main

import (
	"io"
	"log/slog"

	"github.com/outbox-forwarder/forwarder/internal/config"
)

// newLogger returns the process's logger. It writes to standard error; standard output is
// for answers.
func newLogger(cfg config.Log, stderr io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.Level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(stderr, options))
	}
	return slog.New(slog.NewTextHandler(stderr, options))
}
