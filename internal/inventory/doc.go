// Package inventory owns goods and their stock: t_sku and t_stock_movement.
//
// Promise: available + reserved + sold = initial, none of them negative, and each cause moves a SKU's stock once for each
// kind of movement. A stock figure is never set; it is moved by a difference in the same transaction that writes the
// movement's row, whose unique index uk_cause_kind refuses the second time.
//
// A caller sees a repeat as ErrRepeated and out of stock as apperr.Conflict with code "out_of_stock"; in both cases it
// rolls its transaction back.
package inventory
