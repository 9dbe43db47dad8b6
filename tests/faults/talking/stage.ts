import type { Appliance } from "../../support/appliance/appliance.ts";
import { pause } from "../../support/waiting.ts";
import type { Acknowledged } from "../acknowledged.ts";
import type { Random } from "../load.ts";
import { Requests } from "../requests.ts";
import type { Disturbances } from "./disturbances.ts";
import type { LogFollower } from "./follower.ts";

const FIND_MS_MAX = 240_000;
const TRY_AGAIN_MS = 100;

/** The appliance, the facts and the faults that all clients share. */
export interface Stage {
  readonly appliance: Appliance;
  readonly facts: Acknowledged;
  readonly random: Random;
  readonly problems: string[];
  /** an image with `TALKER` */
  readonly image: string;
  /** arguments of a talker: lines at once, slow lines, milliseconds between these */
  readonly pace: readonly [number, number, number];
  readonly boxes: Map<string, { readonly log: LogFollower }>;
  readonly faults: Disturbances;
  /** a server of the outside, whose answer to `/PATH` ends with that path */
  readonly outside: { readonly host: string; readonly port: number };
  /** number of acknowledged changes, by kind */
  readonly done: Record<string, number>;
  /** numbers for names that no other sandbox, process or file has */
  count: number;
}

export function counted({ done }: Stage, what: string): void {
  done[what] = (done[what] ?? 0) + 1;
}

/** The id of a sandbox that may exist. */
export async function idOf({ appliance, problems }: Stage, name: string): Promise<string | undefined> {
  const requests = new Requests(appliance, problems);
  for (const endsAt = Date.now() + FIND_MS_MAX; Date.now() < endsAt; ) {
    const answer = await requests.ask("find", `/sandboxes/name:${name}`);
    if (answer?.status === 200) return (JSON.parse(answer.text) as { uuid: string }).uuid;
    if (answer?.status === 404) return undefined;
    await pause("before the next try", TRY_AGAIN_MS);
  }
  throw new Error(`no answer about sandbox ${name}`);
}
