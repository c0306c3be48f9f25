// Package payment moves money: attempts to pay an order, the money that arrives, and the money that goes back. It owns
// t_payment, t_trade and t_refund, and knows channels only through the Channel interface.
//
// Promises:
//
//   - One charge. An attempt's number is stored before the channel is first called and sent again unchanged; the open attempt
//     of a channel is given again; none starts while the outcome of another is not known.
//   - One effect for each trade. Callback, query, bill and manual replay all come through Apply, whose key is channel +
//     trade_no. Money that an order cannot take (it ended, or was paid by another trade) is recorded and returned once, against
//     its own trade, and never touches a good order.
//   - Refunds never exceed what was paid: the cap is one conditional update, and the row is committed before the channel hears
//     of it.
//   - No call inside a transaction: record the intention, call, record the outcome. What a crash leaves between is found by the
//     jobs, which ask the channel by the same number.
//
// An outcome nobody knows stays UNKNOWN: never "failed", because the money may be on its way.
package payment
