import { answerOf, type Client } from "../client/client.ts";
import { ResponseError } from "../client/errors.ts";
import type { Operation, Usage } from "../client/types.ts";
import { shownDuration, shownSize } from "../domain/text/shown.ts";
import { LIMIT_MAX } from "../domain/tree/listing.ts";
import { CLIENT_OPTIONS, openClient } from "./client.ts";
import { type Command, command, expectPositionals, JSON_OPTION } from "./command.ts";
import { table } from "./table.ts";

type Active = Operation & { readonly usage: Usage | null };

export const watchCommands: readonly Command[] = [
  command({
    name: "ps",
    summary: "list waiting and running operations, with their CPU time and memory",
    synopsis: "[--json]",
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const client = openClient(environment, options.url);
      const now = Date.now();
      const lists = await Promise.all(
        (["EXECUTING", "PENDING"] as const).map((status) =>
          answerOf(client.v1.operations.get({ query: { status, limit: LIMIT_MAX } })),
        ),
      );
      const active = await Promise.all(
        lists
          .flat()
          .map(async (operation): Promise<Active> => ({ ...operation, usage: await usageOf(client, operation) })),
      );
      const rows = active.map((operation) => row(operation, now));
      const text = table(["ID", "KIND", "STATUS", "SINCE", "CPU TIME", "MEMORY"], rows, io.columns);
      await io.stdout(options.json === true ? `${JSON.stringify(active)}\n` : text);
      return 0;
    },
  }),
];

/** Null for an import, and for an instance that has no machine yet or has just ended. */
async function usageOf(client: Client, { id, kind, status }: Operation): Promise<Usage | null> {
  if (kind !== "instance" || status !== "EXECUTING") return null;
  try {
    return await answerOf(client.v1.instances({ uuid: id }).stats.get({ query: { once: true } }));
  } catch (error) {
    if (error instanceof ResponseError && (error.status === 409 || error.status === 404)) return null;
    throw error;
  }
}

function row({ id, kind, status, created_at: createdAt, usage }: Active, now: number): string[] {
  const since = shownDuration(Math.max(0, now - Date.parse(createdAt)));
  const figures = usage === null ? ["-", "-"] : [shownDuration(usage.cpu_time_ms), shownSize(usage.memory_bytes)];
  return [id, kind, status, since, ...figures];
}
