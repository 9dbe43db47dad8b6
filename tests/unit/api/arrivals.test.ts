import { expect, test } from "bun:test";
import { Arrivals } from "../../../src/api/arrivals.ts";
import type { Principal } from "../../../src/service/parts.ts";
import { failureOf } from "../../support/failures.ts";

const MIB = 1_048_576;
const principal = { accountId: "a" } as unknown as Principal;

/** Requests with bodies of a MiB; the test proves their callers. */
function scene() {
  const arrivals = new Arrivals(({ headers }) => headers.get("authorization") ?? headers.get("cookie"));
  const proof = Promise.withResolvers<void>();
  const send = (
    authorization: string | null,
    headers: Readonly<Record<string, string>> = { "content-length": `${MIB}` },
  ) => {
    const all = { ...headers, ...(authorization === null ? {} : { authorization }) };
    return new Request("http://a.example/", { method: "POST", headers: all });
  };
  const waits = (request: Request) => arrivals.admit(request, { principal: null }, () => proof.promise);
  const proves = (request: Request) => arrivals.admit(request, { principal }, async () => "proven");
  return { arrivals, proof, send, waits, proves };
}

test("bodies of unproven callers are refused before they fill the memory, with any credentials", async () => {
  const { proof, send, waits, proves } = scene();
  expect(await proves(send("Bearer good"))).toBe("proven");
  const waiting: Promise<unknown>[] = [];
  const refused: unknown[] = [];
  for (let count = 0; count < 1000; count++) {
    const headers = count % 2 === 0 ? { "content-length": "100000000" } : { "transfer-encoding": "chunked" };
    const wait = waits(send(count % 3 === 0 ? null : `Bearer ${count}`, headers));
    waiting.push(wait.catch((error: unknown) => refused.push(error)));
  }
  for (let turn = 0; turn < 10; turn++) await Promise.resolve();
  expect(1000 - refused.length).toBeLessThanOrEqual(128);
  expect(refused[0]).toMatchObject({ code: "too_many_requests", details: { retry_after_seconds: 1 } });
  expect(await failureOf(waits(send("Bearer new")))).toMatchObject({ code: "too_many_requests" });
  // A request without a body waits only for its turn, and recently proven callers have a share of their own.
  const bare = waits(send(null, {}));
  const proven = proves(send("Bearer good"));
  proof.resolve();
  await Promise.all([...waiting, bare]);
  expect(await proven).toBe("proven");
});

test("the memory of a body is released when its caller is proven, and when the proof fails", async () => {
  const { arrivals, send, proves } = scene();
  const failing = async () => {
    throw new Error("no");
  };
  for (let count = 0; count < 1000; count++) {
    expect(await failureOf(arrivals.admit(send("Bearer bad"), { principal: null }, failing))).toMatchObject({
      message: "no",
    });
    expect(await proves(send("Bearer good"))).toBe("proven");
  }
});

test("a proof without a body counts, until the credential proves nothing any longer", async () => {
  const { arrivals, proof, send, waits, proves } = scene();
  const refusal = { code: "too_many_requests" };
  await proves(send("Bearer good", {}));
  const waiting = Array.from({ length: 128 }, (_, count) => waits(send(`Bearer ${count}`)));
  expect(await proves(send("Bearer good"))).toBe("proven");
  const revoked = async () => {
    throw new Error("revoked");
  };
  const failure = await failureOf(arrivals.admit(send("Bearer good", {}), { principal: null }, revoked));
  expect(failure).toMatchObject({ message: "revoked" });
  expect(await failureOf(waits(send("Bearer good")))).toMatchObject(refusal);
  proof.resolve();
  await Promise.all(waiting);
});

test("the credentials of an account have one share together", async () => {
  const { proof, send, waits, proves } = scene();
  for (let count = 0; count < 100; count++) await proves(send(`Bearer ${count}`));
  const waiting = Array.from({ length: 400 }, (_, count) =>
    waits(send(`Bearer ${count % 100}`)).catch(() => "refused"),
  );
  proof.resolve();
  const admitted = (await Promise.all(waiting)).filter((outcome) => outcome !== "refused");
  expect(admitted).toHaveLength(128);
});
