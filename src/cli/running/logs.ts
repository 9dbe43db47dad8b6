import { eventsBelow, outputOf, pathOfOperation } from "../../client/operation-events.ts";
import { pathOfPlace } from "../../client/place.ts";
import { COMMAND_SPID } from "../../client/processes.ts";
import type { OperationEvent } from "../../client/types.ts";
import { given } from "../../domain/given.ts";
import { CLIENT_OPTIONS, openClient } from "../client.ts";
import { CliError, command, expectPositionals, integerOption, JSON_OPTION } from "../command.ts";
import type { Io } from "../io.ts";
import { inPlace } from "../place.ts";
import { interruptible } from "../wait.ts";

export const logsCommand = command({
  name: "logs",
  summary: "show the output of an instance or a sandbox",
  synopsis: "[-f] ID|NAME [OPTIONS]",
  description:
    "Prints the output of the command of an instance, or of all processes of a sandbox, to standard output and\n" +
    "error. With --json, prints the event log as JSON, one event a line: processes, their outputs and ends.\n" +
    "coppice op log shows the appliance's log lines about an operation.",
  examples: ["coppice logs -f 0197a1d0-5a5e-7000-8000-3c6e0b8a9c15", "coppice logs dev"],
  options: {
    follow: { type: "boolean", short: "f", doc: "follow new output until the instance or sandbox has ended" },
    process: {
      type: "string",
      short: "p",
      value: "SPID",
      doc: "the process with this number; the command of an instance has 1 (default)",
    },
    ...JSON_OPTION,
    ...CLIENT_OPTIONS,
  },
  async run({ options, positionals, io, environment }) {
    const [id = ""] = expectPositionals(positionals, "ID");
    const { follow = false, json = false } = options;
    const number = integerOption("process", options.process, 0);
    const client = openClient(environment, options.url);
    await inPlace(client, id, async (place) => {
      const isInstance = place.sandbox === undefined;
      const spid = number ?? (json || !isInstance ? undefined : COMMAND_SPID);
      // The command is in every instance, also in one that has not begun.
      let isKnown = number === undefined || (isInstance && spid === COMMAND_SPID);
      // Imports and checkpoints have events, too.
      const parent = isInstance ? pathOfOperation(place.instance) : pathOfPlace(place);
      await interruptible(io, async (signal) => {
        for await (const event of eventsBelow(client, parent, { follow, signal, ...given({ spid }) })) {
          if (event.type !== "completion") isKnown = true;
          if (json) await io.stdout(`${JSON.stringify(event)}\n`);
          else await print(event, io);
        }
      });
      if (!isKnown) throw new CliError(`${id} has no process ${spid}`);
    });
    return 0;
  },
});

async function print(event: OperationEvent, io: Io): Promise<void> {
  if (event.type === "stdout") await io.stdout(outputOf(event));
  else if (event.type === "stderr") await io.stderrBytes(outputOf(event));
  else if (event.type === "truncated") {
    const { stream, bytes_dropped: bytes } = event.data;
    io.stderr(`coppice logs: ${bytes} more bytes of ${stream} were not stored\n`);
  } else if (event.type === "adopted") {
    io.stderr("coppice logs: the appliance was restarted here\n");
  } else if (event.type === "dropped") {
    io.stderr(`coppice logs: ${event.data.dropped} earlier events of the log are gone\n`);
  }
}
