/*
 * remote_operations.h
 *		Operations that a transaction has begun on other nodes of a cluster.
 */
#ifndef IDEM_REMOTE_OPERATIONS_H
#define IDEM_REMOTE_OPERATIONS_H

extern void remote_operation_begun(const char *schema, const text *scope, bool many);
extern void remote_operation_ended(void);
extern void remote_operations_register(void);

#endif							/* IDEM_REMOTE_OPERATIONS_H */
