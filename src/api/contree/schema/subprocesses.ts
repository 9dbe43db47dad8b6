import { Type } from "@sinclair/typebox";

export const StartedProcess = Type.Object({
  spid: Type.Integer({ minimum: 2, description: "number of the process in its instance; the command has 1" }),
});
