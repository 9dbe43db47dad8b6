import { until } from "../waiting.ts";

const BUILD_MS_MAX = 120_000;

/** A client of templates, as the published ones speak. */
export class TemplateClient {
  readonly #url: string;
  readonly #key: string;

  constructor(url: string, key: string) {
    this.#url = url;
    this.#key = key;
  }

  // biome-ignore lint/suspicious/noExplicitAny: tests look into any answer.
  async call(method: string, path: string, json?: unknown): Promise<{ readonly status: number; readonly json: any }> {
    const response = await fetch(`${this.#url}${path}`, {
      method,
      headers: { "x-api-key": this.#key, ...(json === undefined ? {} : { "content-type": "application/json" }) },
      ...(json === undefined ? {} : { body: JSON.stringify(json) }),
    });
    const text = await response.text();
    return { status: response.status, json: text === "" ? null : JSON.parse(text) };
  }

  /** Requests a build. @throws Error for another status than 202 */
  async request(name: string, more: object = {}): Promise<{ readonly templateID: string; readonly buildID: string }> {
    return await this.#expect(202, "POST", "/v3/templates", { name, ...more });
  }

  /** Uploads the files of a step, unless they are there. Returns whether they were. */
  async upload(templateID: string, hash: string, archive: Uint8Array): Promise<boolean> {
    const { present, url } = await this.#expect(201, "GET", `/templates/${templateID}/files/${hash}`);
    if (present) return true;
    const { status } = await fetch(url, { method: "PUT", body: archive as Uint8Array<ArrayBuffer> });
    if (status >= 300) throw new Error(`the upload was answered with ${status}`);
    return false;
  }

  async start(build: { readonly templateID: string; readonly buildID: string }, body: object): Promise<void> {
    await this.#expect(202, "POST", `/v2/templates/${build.templateID}/builds/${build.buildID}`, body);
  }

  /** Follows a build to its end, as clients do. */
  async ended({ templateID, buildID }: { readonly templateID: string; readonly buildID: string }): Promise<EndedBuild> {
    const entries: EndedBuild["entries"][number][] = [];
    let end: Omit<EndedBuild, "entries"> = { status: "waiting" };
    await until(
      "the build has ended",
      async () => {
        const path = `/templates/${templateID}/builds/${buildID}/status?logsOffset=${entries.length}`;
        const { status, logEntries, reason } = await this.#expect(200, "GET", path);
        entries.push(...logEntries);
        end = { status, reason };
        return status !== "building" && status !== "waiting";
      },
      BUILD_MS_MAX,
    );
    return { ...end, entries };
  }

  /** Builds a template to its end. */
  async build(name: string, body: object): Promise<EndedBuild & { readonly templateID: string }> {
    const requested = await this.request(name);
    await this.start(requested, body);
    return { ...(await this.ended(requested)), templateID: requested.templateID };
  }

  // biome-ignore lint/suspicious/noExplicitAny: tests look into any answer.
  async #expect(expected: number, method: string, path: string, body?: unknown): Promise<any> {
    const { status, json } = await this.call(method, path, body);
    if (status !== expected) throw new Error(`${method} ${path}: ${status} ${JSON.stringify(json)}`);
    return json;
  }
}

export interface EndedBuild {
  readonly status: string;
  readonly reason?: { readonly message: string; readonly step?: string; readonly logEntries: readonly object[] };
  readonly entries: readonly { readonly message: string; readonly level: string; readonly step?: string }[];
}
