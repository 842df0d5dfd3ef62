/*
 * elsewhere.h
 *		Operations that a transaction has begun on other nodes of a cluster.
 */
#ifndef IDEM_ELSEWHERE_H
#define IDEM_ELSEWHERE_H

extern void elsewhere_begun(const char *schema, const text *scope, bool many);
extern void elsewhere_ended(void);
extern void elsewhere_register(void);

#endif							/* IDEM_ELSEWHERE_H */
