// Package bill compares what a channel says moved on one of its days with what we booked (three-way: bill, our rows, the channel's
// answer), and repairs what it can. It owns t_bill, t_reconciliation and t_recon_difference.
//
// Promises:
//
//   - By numbers only. A line is ours if its trade_no or out_refund_no is, never because an amount or a time fits.
//   - All or nothing. A bill that is not what its hash says, or cannot be read to its last line, is refused and nothing is compared.
//   - One effect. Money that only the channel knows goes through payment.Service.Apply, in one transaction with its difference; so
//     a repair is the same as the notice would have been, and whoever is second finds it done.
//   - Each difference is reported once, however often and by however many at once the day is run. What no rule can decide has an
//     exception.
//   - No false alarm about time. Our side is read before the bill is fetched, so that money which arrives meanwhile is not missed in
//     it; what the bill does not have is asked for at the channel before it is called missing.
//
// A run can break off anywhere and be run again. What is left undone has a time in next_run_at, and the job does it.
package bill
