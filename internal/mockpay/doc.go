// Package mockpay is the fake payment channel: a handler that behaves like a channel's server and can be told to misbehave.
//
// # What it promises
//
// A call that is repeated under the same out_trade_no or out_refund_no has one effect, and the repeat gets the same trade
// or refund; a repeat that differs is refused with 409 and changes nothing. Refunds of a trade that are not FAILED never
// exceed what was paid. Every effect is listed by GET /v1/effects, so that a test can count them. With Config.Journal
// trades, refunds and effects outlive the process; faults, rotated secrets and notices still to be sent do not.
//
//	POST /v1/trades                                   {"merchant_id","out_trade_no","amount","currency","notify_url"?}
//	GET  /v1/trades/{out_trade_no}
//	POST /v1/trades/{out_trade_no}/pay|fail|close     the buyer pays, the payment is declined, the merchant gives up
//	POST /v1/refunds                                  {"merchant_id","out_refund_no","out_trade_no","trade_no"?,"amount","notify_url"?}
//	GET  /v1/refunds/{out_refund_no}
//	POST /v1/refunds/{out_refund_no}/succeed|fail     fail is possible after succeed, as at a bank that returns the money
//	GET  /v1/bills/{date}  /v1/bills/{date}.sha256    the channel's day (UTC+8) as CSV, and its hash; ?merchant_id=
//	GET  /v1/effects                                  {"data": every effect, "arrivals": every call, repeats included}
//	GET, PUT, DELETE /v1/faults                       see Faults
//	PUT  /v1/secrets                                  {"merchant_id","secrets":[newest first]}
//	GET  /pay/{out_trade_no}?return_url=              the page behind pay_url, where a person decides
//
// A trade is PENDING, SUCCEEDED, FAILED or CLOSED; a refund PROCESSING, SUCCESS or FAILED, and stays PROCESSING until
// somebody decides (see Config.AutoRefund). Amounts are minor units. Errors are application/problem+json with a code; a
// refusal that depends on the trade or refund carries it.
//
// # Notices
//
// Each decision is sent to the notify_url of its trade or refund as a Notice, signed anew for each delivery (see
// SignatureHeader). Status 200 with the body "success" acknowledges it; anything else is sent again after 1 s, 5 s, 30 s,
// 2 min and 10 min, then given up. A decision that is asked for again has no second effect, but its notice, with the same
// notify_id, is sent again. ?notify=off on any decision sends none.
package mockpay
