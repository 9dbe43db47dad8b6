import { createApp } from "../../../src/api/app.ts";
import { describe } from "../../../src/api/route.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { ErrorCode } from "../../../src/domain/errors.ts";
import { silentLog } from "../../../src/log.ts";
import { createMetrics } from "../../../src/metrics.ts";
import type { Service } from "../../../src/service/service.ts";
import { type Answer, type CallOptions, send } from "../api/api.ts";
import { assertConforms } from "../api/conformance.ts";
import type { Appliance } from "../appliance/appliance.ts";
import { BusyboxAppliance, type BusyboxApplianceOptions } from "../appliance/busybox-appliance.ts";
import type { Registry } from "../images/registry.ts";

export const CONTREE = "/contree/v1";

/** The declared routes; they serve no request here. */
const { routes } = createApp({
  accounts: new Accounts(),
  service: { status: { version: "" } } as Service,
  verifyToken: () => Promise.resolve(null),
  web: null,
  publicUrl: null,
  metrics: createMetrics(),
  log: silentLog,
});
const ROUTES = describe(routes as never);

/** An appliance with busybox, as the public ConTree clients see it. */
export class Contree implements AsyncDisposable {
  readonly #busybox: BusyboxAppliance;

  private constructor(busybox: BusyboxAppliance) {
    this.#busybox = busybox;
  }

  static async start(options: BusyboxApplianceOptions = {}): Promise<Contree> {
    return new Contree(await BusyboxAppliance.start(options));
  }

  get appliance(): Appliance {
    return this.#busybox.appliance;
  }

  get registry(): Registry {
    return this.#busybox.registry;
  }

  /** busybox in the registry */
  get reference(): string {
    return this.#busybox.reference;
  }

  /** the image of busybox */
  get image(): string {
    return this.#busybox.image;
  }

  /**
   * Sends a request and checks the answer against the route table.
   * @param path below {@link CONTREE}
   */
  async call(method: string, path: string, options: CallOptions = {}): Promise<Answer> {
    const { url, token } = this.appliance;
    const answer = await send(`${url}${CONTREE}${path}`, method, { token, ...options });
    assertConforms(ROUTES, method, `${CONTREE}${path}`, answer);
    return answer;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#busybox[Symbol.asyncDispose]();
  }
}

/** The text of an error, which must have this status and code, and the form that clients read. */
export function contreeError(answer: Answer, status: number, code: ErrorCode): string {
  const { json } = answer;
  if (answer.status !== status || json?.status !== status || json.code !== code || typeof json.error !== "string") {
    throw new Error(`expected ${status} ${code}, got ${answer.status} ${answer.text.slice(0, 500)}`);
  }
  return json.error;
}
