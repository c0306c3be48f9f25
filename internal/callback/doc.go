// Package callback takes what channels send on their own. It owns t_channel_notice.
//
// Promise: a verified notice is acknowledged only after what it brought has been committed, in one transaction with the
// notice itself: payment, order, stock, ledger, message. A repeat is acknowledged and changes nothing; what cannot be applied
// yet is kept and tried again; what cannot be decided is answered 503, so that it comes again. Redis decides nothing here.
//
// The raw body is verified before it is read, and its freshness is judged when it arrives, once: applying it later, or
// replaying it by hand, does not ask again.
package callback
