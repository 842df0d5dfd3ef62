// A client that sends a request exactly as it is told: two headers of one name,
// control characters, any bytes.  node:http refuses to send what the cases need,
// so this writes to the socket itself and reads the answer itself.
import net from 'node:net'

export class Lost extends Error {}

// Starts a request.  `answer` is a promise of {status, headers, body, seconds};
// it rejects with Lost when the connection ends before the answer is whole.
// `abandon` closes the connection, as a client does that goes away.
export function start({ host, port }, request, timeout) {
  const begun = performance.now()
  const socket = net.connect({ host, port })
  const answer = new Promise((resolve, reject) => {
    let received = Buffer.alloc(0)
    const finish = (ended) => {
      const parsed = parse(received, ended)
      if (parsed) {
        resolve({ ...parsed, seconds: (performance.now() - begun) / 1000 })
        socket.destroy()
      } else if (ended) {
        reject(new Lost('the connection ended before the answer was whole'))
      }
    }
    socket.on('data', (bytes) => {
      received = Buffer.concat([received, bytes])
      finish(false)
    })
    socket.on('error', () => finish(true))
    socket.on('close', () => finish(true))
    socket.setTimeout(timeout * 1000, () => {
      reject(new Error(`no answer within ${timeout} s`))
      socket.destroy()
    })
  })
  answer.catch(() => {})
  socket.on('connect', () => socket.write(serialize(request, host, port)))
  return { answer, abandon: () => socket.destroy() }
}

// Characters up to U+00FF become one byte each, so that a case can name any byte.
function serialize({ method, target, headers, body }, host, port) {
  const lines = [`${method} ${target} HTTP/1.1`, `Host: ${host}:${port}`, 'Connection: close']
  for (const [name, value] of headers) lines.push(`${name}: ${value}`)
  if (body.length > 0 || method !== 'GET') lines.push(`Content-Length: ${body.length}`)
  return Buffer.concat([Buffer.from(lines.join('\r\n') + '\r\n\r\n', 'latin1'), body])
}

// The answer in these bytes; undefined when it is not whole yet.
function parse(bytes, ended) {
  const end = bytes.indexOf('\r\n\r\n')
  if (end < 0) return undefined
  const [first, ...lines] = bytes.subarray(0, end).toString('latin1').split('\r\n')
  const status = Number(first.split(' ')[1])
  if (status >= 100 && status < 200) return parse(bytes.subarray(end + 4), ended)
  const headers = lines.map((line) => {
    const colon = line.indexOf(':')
    return [line.slice(0, colon).trim().toLowerCase(), line.slice(colon + 1).trim()]
  })
  const body = bodyOf(bytes.subarray(end + 4), new Map(headers), ended)
  return body && { status, headers, body }
}

function bodyOf(bytes, headers, ended) {
  if (/chunked/i.test(headers.get('transfer-encoding') ?? '')) return unchunk(bytes)
  if (headers.has('content-length')) {
    const length = Number(headers.get('content-length'))
    return bytes.length >= length ? bytes.subarray(0, length) : undefined
  }
  return ended ? bytes : undefined
}

function unchunk(bytes) {
  const parts = []
  for (let at = 0; ;) {
    const end = bytes.indexOf('\r\n', at)
    if (end < 0) return undefined
    const length = parseInt(bytes.subarray(at, end).toString('latin1'), 16)
    if (length === 0) return Buffer.concat(parts)
    if (bytes.length < end + 2 + length + 2) return undefined
    parts.push(bytes.subarray(end + 2, end + 2 + length))
    at = end + 2 + length + 2
  }
}
