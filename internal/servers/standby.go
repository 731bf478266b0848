package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
)

// StartStandby starts a hot standby of the server, which receives its log, with settings of its
// own. The server is stopped for as long as its data is copied: pg_basebackup, which could do it in
// passing, does not come with every package of PostgreSQL. pg_promote makes a primary of it.
func (p *Postgres) StartStandby(ctx context.Context, settings map[string]string) (*Postgres, error) {
	standby, err := p.copyStopped(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("making a standby: %w", err)
	}
	for _, server := range []*Postgres{p, standby} {
		if err := server.Start(ctx); err != nil {
			return nil, errors.Join(err, standby.Close())
		}
	}
	return standby, nil
}

// copyStopped stops the server and makes a standby of a copy of its data.
func (p *Postgres) copyStopped(ctx context.Context, settings map[string]string) (_ *Postgres, err error) {
	if err := p.Stop(); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := newFolder("postgres", p.account)
	if err != nil {
		return nil, err
	}
	s := &Postgres{folder: dir, account: p.account, bin: p.bin, port: port, child: postgresChild()}
	defer func() {
		if err != nil {
			err = errors.Join(err, dir.remove())
		}
	}()
	cp := exec.CommandContext(ctx, "cp", "-R", p.data(), s.data())
	cp.Dir = s.folder.path
	p.account.apply(cp)
	if err := run(ctx, cp); err != nil {
		return nil, err
	}
	if err := s.forgetSlots(); err != nil {
		return nil, err
	}
	// The database is for the one who copies slots: the log itself is received without one.
	all := map[string]string{
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres application_name=standby", p.port),
		"hot_standby":      "on",
	}
	maps.Copy(all, settings)
	all["port"] = fmt.Sprint(s.port)
	if err := s.append(all); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.data(), "standby.signal"), nil, 0o666); err != nil {
		return nil, fmt.Errorf("making a standby of it: %w", err)
	}
	return s, nil
}

// forgetSlots removes the replication slots from a copy of a server's data, as pg_basebackup does:
// a slot belongs to the server that it was made on.
func (p *Postgres) forgetSlots() error {
	slots, err := filepath.Glob(filepath.Join(p.data(), "pg_replslot", "*"))
	for _, slot := range slots {
		err = errors.Join(err, os.RemoveAll(slot))
	}
	if err != nil {
		return fmt.Errorf("leaving replication slots out of a copy: %w", err)
	}
	return nil
}
