/*
 * guard_order.h
 *		Keeps the commit guard in front of the commit callbacks of others.
 */
#ifndef IDEM_GUARD_ORDER_H
#define IDEM_GUARD_ORDER_H

#include "postgres.h"

#include "access/xact.h"

extern void guard_register(XactCallback callback, bool (*refuses) (void));
extern void guard_use(void);
extern void guard_forget(void *registration);

#endif							/* IDEM_GUARD_ORDER_H */
