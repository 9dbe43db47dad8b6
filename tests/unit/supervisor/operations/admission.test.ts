import { expect, test } from "bun:test";
import { Admission } from "../../../../src/supervisor/operations/admission.ts";
import { turns } from "../../../support/waiting.ts";

test("work waits until the last hold is gone, and a hold that is disposed of twice counts once", async () => {
  const admission = new Admission();
  await admission.opened();
  const [first, second] = [admission.hold(), admission.hold()];
  let begun = false;
  const begins = admission.opened().then(() => {
    begun = true;
  });
  first[Symbol.dispose]();
  first[Symbol.dispose]();
  await turns();
  expect([admission.isHeld, begun]).toEqual([true, false]);
  second[Symbol.dispose]();
  await begins;
  expect([admission.isHeld, begun]).toEqual([false, true]);
});

test("work that waited waits again when another hold came in the same turn", async () => {
  const admission = new Admission();
  const first = admission.hold();
  let begun = false;
  const begins = admission.opened().then(() => {
    begun = true;
  });
  first[Symbol.dispose]();
  const second = admission.hold();
  await turns();
  expect(begun).toBe(false);
  second[Symbol.dispose]();
  await begins;
});
