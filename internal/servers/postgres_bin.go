package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// fetchedPostgres is the version that is fetched where the machine has no PostgreSQL.
// fetchedMajor is what its data folders call it.
const (
	fetchedPostgres = embeddedpostgres.PostgresVersion("18.6.0")
	fetchedMajor    = "18"
)

// postgresBin returns the folder with the server's programs.
func postgresBin(ctx context.Context, cfg PostgresConfig) (string, error) {
	if cfg.Bin != "" {
		if !hasPostgres(cfg.Bin) {
			return "", fmt.Errorf("finding PostgreSQL: no initdb and postgres in %s", cfg.Bin)
		}
		return cfg.Bin, nil
	}
	if bin := installedPostgres(); bin != "" && !cfg.Fetched {
		return bin, nil
	}
	return fetchedPostgresBin(ctx, cfg.Log)
}

// fetchedPostgresBin returns the folder with the programs of the fetched PostgreSQL.
func fetchedPostgresBin(ctx context.Context, log *slog.Logger) (string, error) {
	dir, err := cached(ctx, "postgres-"+string(fetchedPostgres), func(into string) error {
		orDefault(log).Info("fetching PostgreSQL, once", "version", fetchedPostgres)
		return fetchPostgres(into)
	})
	if err != nil {
		return "", fmt.Errorf("fetching PostgreSQL (or install it: apt-get install postgresql): %w", err)
	}
	return filepath.Join(dir, "bin"), nil
}

// installedPostgres returns the newest of Debian's installations, else the one in PATH,
// else nothing.
func installedPostgres() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	newest, newestMajor := "", 0
	for _, bin := range found {
		major, err := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
		if err == nil && major > newestMajor && hasPostgres(bin) {
			newest, newestMajor = bin, major
		}
	}
	if newest != "" {
		return newest
	}
	server, err := exec.LookPath("postgres")
	if err != nil {
		return ""
	}
	if server, err = filepath.EvalSymlinks(server); err != nil || !hasPostgres(filepath.Dir(server)) {
		return ""
	}
	return filepath.Dir(server)
}

func hasPostgres(bin string) bool {
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(bin, program)); err != nil {
			return false
		}
	}
	return true
}

// fetchPostgres fills the folder with an installation of PostgreSQL.
//
// The library that knows the package can only fetch as a part of starting a server, which
// it refuses to do as root. So it is given a data folder that no server can start from,
// and told apart by what it leaves: it makes its runtime folder when, and only when, the
// programs are unpacked.
func fetchPostgres(into string) error {
	scratch := filepath.Join(into, ".scratch")
	data, unpacked := filepath.Join(scratch, "data"), filepath.Join(scratch, "unpacked")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	// This file alone makes the folder look used, so the library does not run initdb.
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(fetchedMajor+"\n"), 0o600); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	library := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(fetchedPostgres).
		CachePath(filepath.Join(scratch, "package")).
		BinariesPath(into).
		RuntimePath(unpacked).
		DataPath(data).
		Port(uint32(port)).
		Logger(io.Discard))
	// The library fetches with the default client, which would keep its connections.
	defer http.DefaultClient.CloseIdleConnections()
	startErr := library.Start()
	if startErr == nil {
		return errors.Join(errors.New("the library started a server from an empty data folder"), library.Stop())
	}
	if _, err := os.Stat(unpacked); err != nil || !hasPostgres(filepath.Join(into, "bin")) {
		return startErr
	}
	return os.RemoveAll(scratch)
}
