// Package idemkey keeps what was answered under an Idempotency-Key (draft-ietf-httpapi-idempotency-key-header-07, an
// expired draft, read together with Stripe's published behaviour).
//
// Promise: a record commits in the same transaction as the effect it answers for, so that neither is ever there without
// the other. The same request under the same key gets the same bytes; another request under it is refused; and a record
// belongs to one caller.
//
// How a repeat is seen: Find, before anything is done, or ErrTaken from Begin, when two twins were under way at once. The
// loser of that race waits on the unique index uk_caller_key until the winner has committed (then it replays) or rolled
// back (then it runs).
//
// What it does not stop: the same action under a new key. That is the business keys' work (see package order, key.go).
package idemkey
