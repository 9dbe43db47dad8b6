import { Type } from "@sinclair/typebox";
import { OfProcess, SinceEvent } from "../../wire-fields.ts";
import { flag } from "./common.ts";

/** Query of the events of an operation. */
export const EventsQuery = Type.Object({
  follow: Type.Optional(flag("follow", "1: the stream lasts until the operation has ended")),
  since: Type.Optional(SinceEvent),
  spid: Type.Optional({ ...OfProcess, description: "only events of that process, without the completion" }),
});
