// Servers of each framework whose handler a test gives.
import { Readable } from 'node:stream'
import { describe } from 'node:test'
import { serve } from '@hono/node-server'
import express from 'express'
import Fastify from 'fastify'
import { Hono } from 'hono'
import { HTTPException } from 'hono/http-exception'
import { Idempotency } from 'pg-idempotency'
import { expressIdempotency } from 'pg-idempotency/express'
import { fastifyIdempotency } from 'pg-idempotency/fastify'
import { honoIdempotency } from 'pg-idempotency/hono'
import { poolFor, portOf, send } from './support.js'

// Each framework's way to start a server whose handler is `answer(context, body, response)`: gives {status, headers, body, writes}.
// The response is that of Node, which Hono has none of.
const FRAMEWORKS = {
  express: (idempotency, style, options, answer) => {
    const app = express()
    const once = expressIdempotency(idempotency, options)
    if (options.keepBody) app.use(once.keepBody())
    app.use(express.json())
    if (options.guard) app.use((req, res, next) => options.guard(req) ? next() : res.status(401).end())
    app.all('/do/:id', once[style](async (req, res, context) => {
      const { status = 200, headers = {}, body = '', json, writes } = await answer(context, req.body, res)
      res.status(status).set(headers)
      if (json) return void res.json(json)
      if (body instanceof Readable) body.pipe(res)
      else res.end(body)
      return writes
    }))
    app.use(once.problemErrors())
    return app.listen(0, '127.0.0.1')
  },
  fastify: async (idempotency, style, options, answer) => {
    const app = Fastify()
    app.addContentTypeParser('*', { parseAs: 'buffer' }, (request, body, done) => done(null, body))
    if (options.guard) app.addHook('preHandler', async (request, reply) => options.guard(request) ? undefined : reply.code(401).send())
    await app.register(fastifyIdempotency, { idempotency, ...options })
    app.all('/do/:id', app.idempotent[style](async (request, reply, context) => {
      const { status = 200, headers = {}, body = '', json, writes } = await answer(context, request.body, reply.raw)
      if (json) return reply.headers(headers).send(json)
      reply.code(status).headers(headers).send(body ?? undefined)
      return writes ?? reply
    }))
    await app.listen({ port: 0, host: '127.0.0.1' })
    return app.server
  },
  hono: (idempotency, style, options, answer) => {
    const app = new Hono()
    const once = honoIdempotency(idempotency, options)
    if (options.guard) app.use(async (c, next) => options.guard(c.req) ? next() : c.body(null, 401))
    app.all('/do/:id', once[style](async (c, context) => {
      const { status = 200, headers = {}, body = '', json, writes } = await answer(context, await c.req.text())
      if (json) return c.json(json, status, headers)
      const all = new Headers()
      for (const [name, value] of Object.entries(headers)) for (const one of [value].flat()) all.append(name, one)
      const response = new Response(body instanceof Readable ? Readable.toWeb(body) : body, { status, headers: all })
      return writes ? { response, writes } : response
    }))
    return serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' })
  },
}

// The errors by which handlers of each framework refuse.
export const REFUSALS = {
  express: (status) => Object.assign(new Error('no'), { status }),
  fastify: (statusCode) => Object.assign(new Error('no'), { statusCode }),
  hono: (status) => new HTTPException(status),
}

export const headerOf = (request, name) => typeof request.header === 'function' ? request.header(name) : request.headers[name]

// onEachFramework((framework, server) => …) gives its tests the name of a framework, and what starts a server on it.
export function onEachFramework(tests) {
  for (const [framework, start] of Object.entries(FRAMEWORKS)) describe(framework, () => tests(framework, starterOf(framework, start)))
}

function starterOf(framework, start) {
  return async (t, answer, { style = 'transaction', clock, ...options } = {}) => {
    const pool = poolFor(t)
    const idempotency = new Idempotency(pool, { retry: { base: 1, cap: 20 }, clock })
    const errors = []
    const port = await portOf(t, await start(idempotency, style, {
      principal: async () => 'me', scope: async (request, { method, route, principal }) => `${framework} ${method} ${route} ${principal}`,
      onError: (error) => errors.push(error), ...options,
    }, answer))
    const post = (key, body = '{}', { headers = {}, path = '/do/1', method = 'POST' } = {}) => send(port, {
      method, path, body, headers: { 'content-type': 'application/json', ...(key && { 'idempotency-key': key }), ...headers },
    })
    const status = async (...request) => (await post(...request)).status
    return { pool: poolFor(t), post, status, errors }
  }
}
