import { expect, test } from "bun:test";
import type { Server } from "bun";
import type { SessionGate } from "../../../../src/api/web/session-gate.ts";
import { SignIn } from "../../../../src/api/web/sign-in.ts";
import { silentLog } from "../../../../src/log.ts";
import type { SessionUseCases } from "../../../../src/service/sessions.ts";

/** An attempt of a client that never sends its token. Returns whether it was refused at once. */
async function isRefused(signIn: SignIn, address: string): Promise<boolean> {
  const body = new ReadableStream<Uint8Array>({ pull: () => new Promise<void>(() => undefined) });
  const server = { requestIP: () => ({ address }) } as unknown as Server<unknown>;
  const request = new Request("http://localhost/", { method: "POST", body });
  const refusal = signIn.run(request, server).then(
    () => false,
    () => true,
  );
  const turn = new Promise<boolean>((resolve) => setImmediate(() => resolve(false)));
  return await Promise.race([refusal, turn]);
}

test("clients that never send their token leave places for later ones", async () => {
  const gate = { requireOwnPage: () => undefined, requireCookie: () => undefined } as unknown as SessionGate;
  const sessions = {} as SessionUseCases;
  const signIn = new SignIn({ gate, sessions, publicUrl: null, log: silentLog });
  let refusedCount = 0;
  for (let network = 0; network < 103; network++) {
    for (let n = 0; n < 10; n++) if (await isRefused(signIn, `10.0.0.${network}`)) refusedCount += 1;
  }
  expect(refusedCount).toBeGreaterThan(0);
  expect(await isRefused(signIn, "10.1.0.1")).toBe(false);
});
