// Package ops is the operator's desk: small pages, rendered here, over the operator's routes of the API.
//
// Promise: the desk can do nothing that the API cannot. Every look and every button is a request to the API itself, with the
// operator's own token, so that role, Idempotency-Key, guards and audit are the same; a button pressed twice, or a page sent
// again by the browser, carries the same key and happens once.
//
// The token stays in a cookie that scripts cannot read and that other sites' pages cannot send; there are no scripts.
package ops
