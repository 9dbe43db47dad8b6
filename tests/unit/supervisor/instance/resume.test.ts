import { expect, test } from "bun:test";
import { resume } from "../../../../src/supervisor/instance/execute.ts";
import { failure } from "../../../support/guests/agent-script.ts";

test("the machine of a record that cannot be continued is killed", async () => {
  let isDisposed = false;
  const machine = {
    [Symbol.asyncDispose]: async () => {
      isDisposed = true;
    },
  };
  const resumed = { record: { instance: { processes: [] } }, machine } as unknown as Parameters<typeof resume>[2];
  const parts = [{}, {}] as unknown as [Parameters<typeof resume>[0], Parameters<typeof resume>[1]];
  const error = await failure(resume(...parts, resumed, new AbortController().signal));
  expect(error.message).toBe("an instance without its command");
  expect(isDisposed).toBe(true);
});
