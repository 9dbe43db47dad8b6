import { startCheckpoint } from "../../client/imports.ts";
import type { CheckpointResult } from "../../client/types.ts";
import { given } from "../../domain/given.ts";
import { shownDuration, shownSize } from "../../domain/text/shown.ts";
import { CLIENT_OPTIONS, openClient } from "../client.ts";
import { command, expectPositionals, JSON_OPTION, secondsOption } from "../command.ts";
import { inPlace } from "../place.ts";
import { successOf } from "../wait.ts";

export const checkpointCommand = command({
  name: "checkpoint",
  summary: "make an image of the files of a running instance or sandbox",
  synopsis: "ID|NAME [OPTIONS]",
  description:
    "Prints the image's UUID. The image contains every write that returned before it was made. Ctrl-C cancels\n" +
    "the checkpoint, not the instance. The image becomes the head of a sandbox, to which coppice rollback returns.",
  examples: ["coppice checkpoint 0197a1d0-5a5e-7000-8000-3c6e0b8a9c15 --tag before-upgrade", "coppice checkpoint dev"],
  options: {
    tag: { type: "string", value: "NAME", doc: "tag the image" },
    timeout: { type: "string", value: "DURATION", doc: "time limit of the checkpoint, such as 90s or 30m" },
    ...JSON_OPTION,
    ...CLIENT_OPTIONS,
  },
  async run({ options, positionals, io, environment }) {
    const [id = ""] = expectPositionals(positionals, "ID");
    const request = given({ tag: options.tag, timeout: secondsOption("timeout", options.timeout) });
    const client = openClient(environment, options.url);
    const uuid = await inPlace(client, id, (place) => startCheckpoint(client, place, request));
    const operation = await successOf(client, { io, id: uuid, label: "making a checkpoint" });
    const { image, size_bytes: sizeBytes, pause_ms: pauseMs } = operation.result as CheckpointResult;
    await io.stdout(options.json === true ? `${JSON.stringify(operation)}\n` : `${image}\n`);
    io.stderr(`${shownSize(sizeBytes)}; the instance was stopped for ${shownDuration(pauseMs)}\n`);
    return 0;
  },
});
