import { type Answer, type Api, type CallOptions, send } from "./api.ts";

/** A person who is signed in to the page, as their browser sends requests. */
export class Page {
  /** the `Cookie` header of the browser */
  readonly cookie: string;
  readonly csrf: string;
  readonly #origin: string;

  constructor(origin: string, cookie: string, csrf: string) {
    this.#origin = origin;
    this.cookie = cookie;
    this.csrf = csrf;
  }

  static async signIn(api: Pick<Api, "url" | "token">, token = api.token): Promise<Page> {
    const answer = await signIn(api.url, token);
    if (answer.status !== 201) throw new Error(`signing in answered ${answer.status} ${answer.text}`);
    return new Page(api.url, cookieOf(answer), answer.json.csrf);
  }

  /** Both halves of the proof, and the headers that a browser adds. */
  headers(method = "GET"): Record<string, string> {
    const origin: Record<string, string> = method === "GET" || method === "HEAD" ? {} : { origin: this.#origin };
    return { ...origin, cookie: this.cookie, "x-csrf-token": this.csrf, "sec-fetch-site": "same-origin" };
  }

  /** Sends a request as the page does. */
  send(method: string, path: string, options: CallOptions = {}): Promise<Answer> {
    const headers = { ...this.headers(method), ...options.headers };
    return send(`${this.#origin}${path}`, method, { ...options, headers });
  }

  /** The address of a link for a path of the API. */
  link(path: string): string {
    return `/web/api/~${this.csrf}${path}`;
  }
}

/** Signs in as the page does. */
export function signIn(url: string, token: unknown, options: CallOptions = {}): Promise<Answer> {
  const headers = { origin: url, "sec-fetch-site": "same-origin", ...options.headers };
  return send(`${url}/web/session`, "POST", { json: { token }, ...options, headers });
}

/** The cookie that an answer sets, as a browser sends it back. */
export function cookieOf({ headers }: Pick<Answer, "headers">): string {
  return headers.get("set-cookie")?.split(";")[0] ?? "";
}
