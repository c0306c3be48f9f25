package bill

import (
	"time"

	"example.com/oncepay/internal/apperr"
)

// readyHour is when the bill of the day before is final, by the channel's clock: WeChat Pay makes it from 9:00 and asks to come
// after 10:00 (its "download bill" page), Alipay has it by 9:00 (alipay.data.dataservice.bill.downloadurl.query, bill_date).
const readyHour = 10

// firstYear keeps the arithmetic within what DATETIME holds (from the year 1000); no channel has bills that old.
const firstYear = 2000

// day is one of a channel's days.
type day struct {
	name       string    // such as 2026-05-01
	start, end time.Time // [start, end), UTC
	ready      time.Time // when its bill is final
}

func dayOf(midnight time.Time) day {
	y, m, d := midnight.Date()
	return day{
		name: midnight.Format(time.DateOnly), start: midnight.UTC(), end: time.Date(y, m, d+1, 0, 0, 0, 0, midnight.Location()).UTC(),
		ready: time.Date(y, m, d+1, readyHour, 0, 0, 0, midnight.Location()).UTC(),
	}
}

// parseDay reads a date. The channel's today is the last one that can have a bill.
func parseDay(date string, zone *time.Location, now time.Time) (day, error) {
	midnight, err := time.ParseInLocation(time.DateOnly, date, zone)
	if err != nil || midnight.Year() < firstYear || midnight.After(now) {
		return day{}, apperr.New(apperr.Invalid, "bill_day_invalid", "date is a day such as 2026-05-01, and by the channel's clock (%s) not one to come.", zone)
	}
	return dayOf(midnight), nil
}

func (d day) has(at time.Time) bool { return !at.Before(d.start) && at.Before(d.end) }

// lookBack is how many days the job cares for by itself: long enough for an outage over a holiday week, and less than the three
// months for which channels keep their bills.
const lookBack = 7

// recent returns the days of the last week whose bill is final.
func recent(zone *time.Location, now time.Time) []day {
	y, m, d := now.In(zone).Date()
	var days []day
	for back := lookBack; back > 0; back-- {
		if one := dayOf(time.Date(y, m, d-back, 0, 0, 0, 0, zone)); !now.Before(one.ready) {
			days = append(days, one)
		}
	}
	return days
}
