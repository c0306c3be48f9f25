package mysqldb_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/testenv"
	"example.com/oncepay/migrations"
)

// up migrates as one instance does.
func up(t *testing.T, dsn string, files fs.FS, log *slog.Logger) error {
	t.Helper()
	m, err := mysqldb.NewMigrator(t.Context(), dsn, files, log)
	if err != nil {
		return err
	}
	return errors.Join(m.Up(t.Context()), m.Check(), m.Close())
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// with runs f on an open migrator.
func with(t *testing.T, dsn string, files fs.FS, f func(m *mysqldb.Migrator) error) error {
	t.Helper()
	m, err := mysqldb.NewMigrator(t.Context(), dsn, files, discard())
	if err != nil {
		t.Fatal(err)
	}
	return errors.Join(f(m), m.Close())
}

func names(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := fs.Glob(migrations.FS, pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	slices.Sort(names)
	return names
}

// latest is the version of this build's schema: files are numbered without a gap.
func latest(t *testing.T) string { return strconv.Itoa(len(names(t, "*.up.sql"))) }

// firstFiles is an older build's set of files.
func firstFiles(t *testing.T, n int) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{}
	for _, name := range names(t, "*.sql")[:2*n] {
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: text}
	}
	return files
}

func wantVersion(t *testing.T, dsn, version string) {
	t.Helper()
	db := testenv.OpenDB(t, dsn)
	want(t, db.DB, version, "SELECT CONCAT(version, CASE WHEN dirty THEN ' dirty' ELSE ' clean' END) FROM schema_migrations")
}

// B113: of three instances that start on a server without the database one migrates, the others wait and find it done.
func TestThreeMigratorsAtOnceMigrateOnce(t *testing.T) {
	dsn := testenv.EmptyDatabase(t)
	exec(t, testenv.OpenDB(t, dsn).DB, "DROP DATABASE "+databaseName(t, dsn))
	var mu sync.Mutex
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(b)
	}), nil))
	testenv.Together(3, func(i int) {
		if err := up(t, dsn, migrations.FS, logger); err != nil {
			t.Errorf("instance %d: %v", i, err)
		}
	})
	for _, name := range names(t, "*.up.sql") {
		if n := strings.Count(log.String(), name); n != 1 {
			t.Errorf("%s was applied %d times", name, n)
		}
	}
	wantVersion(t, dsn, latest(t)+" clean")
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// B113: an instance that dies in mid-migration leaves a dirty schema. Every later start refuses it, says what to do, and
// forces nothing; what it says works, whether the statement took effect or not.
func TestADirtySchemaIsRefusedWithAdviceThatWorks(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault testenv.Action
		force int // what the person finds out
	}{
		{"killed before the statement", testenv.CutBefore(), 6},
		{"killed behind the statement", testenv.SwallowReply(), 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			direct := testenv.EmptyDatabase(t)
			proxy, dsn := testenv.BehindMySQLProxy(t, direct)
			proxy.On(testenv.Contains("CREATE TABLE t_order_history"), 1, c.fault)
			if err := up(t, dsn, migrations.FS, discard()); err == nil {
				t.Fatal("the fault was not noticed")
			}
			for range 2 { // the second start finds what the first left: nothing was forced
				err := up(t, direct, migrations.FS, discard())
				if err == nil {
					t.Fatal("a dirty schema is accepted")
				}
				for _, part := range []string{"dirty", "version 7", "000007_*.up.sql", "migrate -force 7", "migrate -force 6"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%q is not in: %v", part, err)
					}
				}
				wantVersion(t, direct, "7 dirty")
			}
			if err := with(t, direct, migrations.FS, (*mysqldb.Migrator).Check); err == nil || !strings.Contains(err.Error(), "dirty") {
				t.Errorf("Check: %v", err)
			}
			if err := with(t, direct, migrations.FS, func(m *mysqldb.Migrator) error { return m.Force(c.force) }); err != nil {
				t.Fatal(err)
			}
			if err := up(t, direct, migrations.FS, discard()); err != nil {
				t.Errorf("after the repair: %v", err)
			}
			wantVersion(t, direct, latest(t)+" clean")
		})
	}
}

func TestForceZeroMeansThatNothingIsApplied(t *testing.T) {
	dsn := testenv.EmptyDatabase(t)
	files := fstest.MapFS{"000001_a.up.sql": {Data: []byte("CREATE TABLE a (")}}
	if err := up(t, dsn, files, discard()); err == nil || !strings.Contains(err.Error(), "-force 0") {
		t.Fatalf("got %v", err)
	}
	if err := with(t, dsn, files, func(m *mysqldb.Migrator) error { return m.Force(0) }); err != nil {
		t.Fatal(err)
	}
	if err := up(t, dsn, migrations.FS, discard()); err != nil {
		t.Error(err)
	}
}

// B113
func TestAFileThatFailsStopsThereAndLeavesTheOnesBefore(t *testing.T) {
	dsn := testenv.EmptyDatabase(t)
	files := firstFiles(t, 2)
	files["000003_bad.up.sql"] = &fstest.MapFile{Data: []byte("ALTER TABLE t_sku ADD KEY ix_nothing (nothing)")}
	files["000004_never.up.sql"] = &fstest.MapFile{Data: []byte("CREATE TABLE never (id INT)")}
	err := up(t, dsn, files, discard())
	if err == nil || !strings.Contains(err.Error(), "000003_bad.up.sql failed") || !strings.Contains(err.Error(), "-force 2") {
		t.Errorf("got %v", err)
	}
	wantVersion(t, dsn, "3 dirty")
	want(t, testenv.OpenDB(t, dsn).DB, "0", "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'never'")
}

// B113: duplicates are found, and shown, before the unique index is built; nothing is marked dirty.
func TestDuplicatesAreReportedBeforeTheIndexIsBuilt(t *testing.T) {
	dsn := testenv.EmptyDatabase(t)
	if err := up(t, dsn, firstFiles(t, 5), discard()); err != nil {
		t.Fatal(err)
	}
	db := testenv.OpenDB(t, dsn)
	for i, bizToken := range []string{"o1:k:1:same", "o1:k:1:same", "o1:k:1:other"} {
		exec(t, db.DB, `INSERT INTO t_order (order_no, user_id, sku_id, biz_token, status, version, quantity, amount, currency, expires_at, create_time, update_time)
			VALUES (?, 1, 1, ?, 0, 1, 1, 1, 'CNY', NOW(), NOW(), NOW())`, i, bizToken)
	}
	for range 2 {
		err := up(t, dsn, migrations.FS, discard())
		if err == nil {
			t.Fatal("the index was built over duplicates")
		}
		for _, part := range []string{"000006_add_order_biz_token.up.sql not begun", "o1:k:1:same (2 rows)", "SELECT biz_token"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in: %v", part, err)
			}
		}
		if strings.Contains(err.Error(), "other") {
			t.Errorf("names a row that is no duplicate: %v", err)
		}
		wantVersion(t, dsn, "5 clean")
	}
	exec(t, db.DB, "DELETE FROM t_order WHERE order_no = '1'")
	if err := up(t, dsn, migrations.FS, discard()); err != nil {
		t.Error(err)
	}
}

// B113: MIGRATE_ON_START=false.
func TestCheckRefusesAnySchemaButThisBuilds(t *testing.T) {
	dsn := testenv.EmptyDatabase(t)
	check := func() error { return with(t, dsn, migrations.FS, (*mysqldb.Migrator).Check) }
	if err := check(); err == nil || !strings.Contains(err.Error(), "version 0, this build needs "+latest(t)) {
		t.Errorf("empty: %v", err)
	}
	if err := up(t, dsn, firstFiles(t, 5), discard()); err != nil {
		t.Fatal(err)
	}
	if err := check(); err == nil || !strings.Contains(err.Error(), "version 5, this build needs "+latest(t)+"; run `api migrate`") {
		t.Errorf("old: %v", err)
	}
	wantVersion(t, dsn, "5 clean")
	if err := up(t, dsn, migrations.FS, discard()); err != nil {
		t.Fatal(err)
	}
	if err := check(); err != nil {
		t.Errorf("current: %v", err)
	}
}

func TestANewerSchemaIsRefused(t *testing.T) {
	dsn := testenv.Database(t)
	for _, f := range []func(m *mysqldb.Migrator) error{
		func(m *mysqldb.Migrator) error { return m.Up(t.Context()) },
		(*mysqldb.Migrator).Check,
	} {
		if err := with(t, dsn, firstFiles(t, 5), f); err == nil || !strings.Contains(err.Error(), "version "+latest(t)) {
			t.Errorf("got %v", err)
		}
	}
	wantVersion(t, dsn, latest(t)+" clean")
}

// Every step down undoes its step up, and nothing else: going down and up again at each step gives the same schema.
func TestEveryStepDownUndoesItsStepUp(t *testing.T) {
	dsn := testenv.Database(t)
	db := testenv.OpenDB(t, dsn)
	run := func(name string) {
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		exec(t, db.DB, string(text))
	}
	for _, name := range slices.Backward(names(t, "*.up.sql")) {
		down := strings.Replace(name, ".up.", ".down.", 1)
		after := schema(t, db.DB)
		run(down)
		before := schema(t, db.DB)
		if before == after {
			t.Errorf("%s changes nothing", down)
		}
		run(name)
		if again := schema(t, db.DB); again != after {
			t.Errorf("%s and %s do not fit:\n%s\nand\n%s", down, name, after, again)
		}
		run(down)
	}
	want(t, db.DB, "schema_migrations", "SELECT GROUP_CONCAT(table_name) FROM information_schema.tables WHERE table_schema = DATABASE()")
}

func TestFilesThatAreNoMigrationsAreRefused(t *testing.T) {
	dsn := testenv.EmptyDatabase(t)
	if _, err := mysqldb.NewMigrator(t.Context(), "root@nonsense", migrations.FS, discard()); err == nil {
		t.Error("a malformed DSN is accepted")
	}
	m, err := mysqldb.NewMigrator(t.Context(), dsn, fstest.MapFS{"readme.txt": {}}, discard())
	if err == nil {
		err = errors.Join(m.Up(t.Context()), m.Close())
	}
	if err == nil {
		t.Error("no files are accepted")
	}
}
