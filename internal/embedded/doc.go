// Package embedded runs a private MySQL-compatible server and a private Redis as child processes: the default of
// `go run ./cmd/api`, and what tests use instead of emulators, which lose updates silently.
//
// Promises:
//
//   - Private. A server listens on a unix socket in a directory only this user can enter, never on TCP; the socket is
//     therefore its whole access control.
//   - One owner. A directory is used by one process at a time; another one gets an error that names the owner.
//   - Durable. An acknowledged MySQL commit survives SIGKILL of the server and of the parent. Redis keeps nothing: in
//     this project its loss may cost a repeat, never a wrong result.
//   - No orphans. Stop ends the server. On Linux the kernel also ends it when the parent is killed; elsewhere it stays,
//     and the next start names its pid.
//
// It needs Linux or macOS.
package embedded
