/*
 * citus_delegate.h
 *		Calls that Citus is to send to the node that has the operation.
 */
#ifndef IDEM_CITUS_DELEGATE_H
#define IDEM_CITUS_DELEGATE_H

extern void delegate_register(void);

#endif							/* IDEM_CITUS_DELEGATE_H */
