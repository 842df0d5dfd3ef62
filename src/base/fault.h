/*
 * fault.h
 *		Where a test lets a session fail, die or wait.
 *
 * Only -DIDEM_FAULTS brings the points to life.  Everywhere else a point is
 * nothing, and leaves no trace in the object code.  The flag is known to these
 * two files alone.
 */
#ifndef IDEM_FAULT_H
#define IDEM_FAULT_H

#ifdef IDEM_FAULTS

#ifndef IDEM_STAGED
#error "a build with faults is for tests, and goes to a stage: make with DESTDIR=/path"
#endif

extern void fault_register(void);
extern void fault_point(const char *name);

#define FAULT_REGISTER() fault_register()
#define FAULT_POINT(name) fault_point(name)
/* in a statement: after a row was read, before what comes of it is used */
#define FAULT_POINT_SQL(name) \
	" AND pg_catalog.set_config('idempotency.fault_point', '" name "', true) IS NOT NULL"

#else

#define FAULT_REGISTER() ((void) 0)
#define FAULT_POINT(name) ((void) 0)
#define FAULT_POINT_SQL(name) ""

#endif							/* IDEM_FAULTS */

#endif							/* IDEM_FAULT_H */
