import { expect, test } from "bun:test";
import { unitIn } from "../../../src/system/systemd.ts";

test.each([
  ["version 2", "0::/system.slice/coppice.service\n", "coppice.service"],
  ["version 2, after its move to a child", "0::/system.slice/coppice.service/daemon\n", "coppice.service"],
  ["version 1", "4:memory:/\n1:name=systemd:/system.slice/coppice.service\n0::/\n", "coppice.service"],
  ["a user's service", "0::/user.slice/user-7.slice/user@7.service/app.slice/mine.service\n", "mine.service"],
  ["a login", "0::/user.slice/user-7.slice/session-3.scope\n", null],
  ["no cgroup", "", null],
])("the service of a process is the innermost one of its control groups: %s", (_what, cgroups, unit) => {
  expect(unitIn(cgroups)).toBe(unit);
});
