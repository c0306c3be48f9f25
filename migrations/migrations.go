// Package migrations holds the schema as golang-migrate pairs, one DDL statement a file, embedded in the binary.
//
// One statement a file because DDL is not transactional: a file of two could stop between them, and no down file would
// fit what is there. A file that adds a unique index to a table that may hold rows names the query that finds duplicates
// in a line "-- duplicates: SELECT ..."; the migrator reports them before it touches anything.
package migrations

import "embed"

// FS holds the *.up.sql and *.down.sql files.
//
//go:embed *.sql
var FS embed.FS
