/**
 * Makes routes of a servlet container idempotent: {@link org.example.idempotency.servlet.IdempotencyFilter}.
 */
package org.example.idempotency.servlet;
