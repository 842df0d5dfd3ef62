// Calls a recipe of an ORM for each line of the input: play.py says how.
import { createInterface } from 'node:readline'

/**
 * @param {(key: string, request: {account: string, amount: number}) => Promise<any>} pay
 * @param {(error: any) => string | undefined} sqlstate
 */
export async function serve(pay, sqlstate) {
  for await (const line of createInterface({ input: process.stdin })) {
    const [key, account, amount] = line.split(' ')
    try {
      const { code, payload, replayed } = await pay(key, { account, amount: Number(amount) })
      console.log(code, replayed ? 'replay' : 'new', JSON.stringify(payload))
    } catch (error) {
      const state = sqlstate(error)
      if (!state) console.error(error.message)
      console.log('error', state ?? error.constructor.name)
    }
  }
}
