/*
 * duration.c
 *		Intervals as elapsed time: days of 24 hours and months of 30 days.
 *		Leases and retention do not follow the calendar.
 */
#include "postgres.h"

#include "common/int.h"

#include "base/compat.h"
#include "base/duration.h"

/* false: it is infinite, or too long for microseconds in an int64 */
bool
duration_of(const Interval *interval, int64 *microseconds)
{
	/* an int32 of months in days, and days in an int64, cannot overflow */
	int64		days = (int64) interval->month * DAYS_PER_MONTH + interval->day;

	return !INTERVAL_NOT_FINITE(interval) &&
		!pg_mul_s64_overflow(days, USECS_PER_DAY, microseconds) &&
		!pg_add_s64_overflow(*microseconds, interval->time, microseconds);
}
