/** Where the server is, and how it is asked over HTTP. */

import { setTimeout as sleep } from "node:timers/promises";
import { ProblemError, Unreachable } from "./errors.js";

const DEFAULT_URL = "http://127.0.0.1:8070";
const ANSWER_MS = 30_000;
// A server that restarts is soon back, and what has happened outside should be noted.
const PATIENCE_MS = 30_000;
const PAUSE_MS = 250;

type Method = "POST" | "PUT" | "DELETE";

export class Server {
  readonly url: string;
  /** The token of a key goes with every request; nothing without keys. */
  readonly headers: Record<string, string>;

  /** What was given, else ONWARD_URL, else this machine; else ONWARD_KEY, else no key. */
  constructor(url?: string, key?: string) {
    const token = key || process.env["ONWARD_KEY"];
    this.headers = token ? { authorization: `Bearer ${token}` } : {};
    const said = url || process.env["ONWARD_URL"] || DEFAULT_URL;
    const whole = said.includes("://") ? said : `http://${said}`;
    if (!/^(http|ws)s?:/.test(whole) || !URL.canParse(whole)) {
      throw new TypeError(`'${said}' is not the URL of a server; one looks like ${DEFAULT_URL}`);
    }
    const { protocol, host, pathname } = new URL(whole);
    this.url = `${protocol.replace("ws", "http")}//${host}${pathname.replace(/\/+$/, "")}`;
  }

  get socketUrl(): string {
    return `${this.url.replace("http", "ws")}/ws/worker`;
  }

  /** The answer's JSON. */
  async ask(method: Method, path: string, body: string | null = null): Promise<any> {
    return (await this.askCounting(method, path, body)).answer;
  }

  /** The answer's JSON, and how often the server was asked: it may have heard an earlier request too. */
  async askCounting(method: Method, path: string, body: string | null): Promise<{ answer: any; asked: number }> {
    const until = performance.now() + PATIENCE_MS;
    const headers = { "content-type": "application/json", ...this.headers };
    for (let asked = 1; ; asked++) {
      const signal = AbortSignal.timeout(ANSWER_MS);
      const answer = await fetch(this.url + path, { method, body, headers, signal })
        .then(async (response) => ({ status: response.status, text: await response.text() }))
        .catch((cause: unknown) => {
          if (performance.now() >= until) throw new Unreachable(`no answer from ${this.url}`, { cause });
        });
      if (answer && answer.status < 300) return { answer: answer.text && JSON.parse(answer.text), asked };
      if (answer && (answer.status !== 503 || performance.now() >= until)) {
        const detail = /"detail":\s*"([^"]+)"/.exec(answer.text)?.[1];
        throw new ProblemError(answer.status, detail ?? `HTTP ${answer.status} from ${this.url}`);
      }
      await sleep(PAUSE_MS);
    }
  }
}
