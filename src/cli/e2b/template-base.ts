import { answerOf } from "../../client/client.ts";
import { Run, textOf } from "../../client/runs.ts";
import type { InstanceResult } from "../../client/types.ts";
import { given } from "../../domain/given.ts";
import { isUserName, USER_SCRIPT } from "../../domain/templates/user-script.ts";
import { CLIENT_OPTIONS, openClient } from "../client.ts";
import { CliError, command, expectPositionals, JSON_OPTION, secondsOption, UsageError } from "../command.ts";
import { imageOf } from "../image-reference.ts";
import { NETWORK_OPTIONS, networkField } from "../running/network.ts";
import { successOf } from "../wait.ts";

const NAME_DEFAULT = "base";
const USER_DEFAULT = "user";
/** Programs that clients of E2B expect in every template. */
const PROGRAMS = ["bash", "git", "python3", "sudo"] as const;

/**
 * Installs the missing programs if there is a network ($2 is install), adds the user $1, and prints a line for each program
 * that is still missing.
 */
const SCRIPT = `present() { command -v "$1" >/dev/null 2>&1; }
missing() { for program in ${PROGRAMS.join(" ")}; do present "$program" || printf '%s\\n' "$program"; done; }
if [ "$2" = install ] && [ -n "$(missing)" ] && present apt-get; then
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update && apt-get install -y --no-install-recommends ca-certificates $(missing); } >&2 || exit 100
  rm -rf /var/lib/apt/lists/*
fi
${USER_SCRIPT}missing
`;

export const templateBaseCommand = command({
  name: "e2b template base",
  summary: "make the template base, which clients of E2B expect, from an image",
  synopsis: "IMAGE [OPTIONS]",
  description:
    "IMAGE is a UUID, tag:NAME, or REGISTRY/REPOSITORY:VERSION, which is imported once. One like Debian suits best.\n" +
    "The template gets a user with sudo. With a network, apt-get installs what is missing of\n" +
    `${PROGRAMS.join(", ")}; without one the image is used as it is, and what is missing is named.\n` +
    "Prints the UUID of the template's image.",
  examples: [
    "coppice e2b template base registry.example.net/library/debian:12 --network 'allow=*'",
    "coppice e2b template base tag:python --name base",
  ],
  options: {
    name: { type: "string", value: "NAME", doc: `tag of the template (default: ${NAME_DEFAULT})` },
    user: { type: "string", value: "NAME", doc: `user to add if the image lacks it (default: ${USER_DEFAULT})` },
    timeout: { type: "string", value: "DURATION", doc: "time limit of the run, such as 90s or 30m" },
    ...NETWORK_OPTIONS,
    ...JSON_OPTION,
    ...CLIENT_OPTIONS,
  },
  async run({ options, positionals, io, environment }) {
    const [reference = ""] = expectPositionals(positionals, "IMAGE");
    const { name = NAME_DEFAULT, user = USER_DEFAULT } = options;
    if (!isUserName(user)) throw new UsageError(`--user ${user} is not a name of a user`);
    const network = networkField(options);
    const timeout = secondsOption("timeout", options.timeout);
    const client = openClient(environment, options.url);
    const image = await imageOf(client, io, reference);
    const hasNetwork = network.network !== undefined;
    const run = await Run.start(client, {
      image,
      command: SCRIPT,
      args: [user, hasNetwork ? "install" : "keep"],
      shell: true,
      cwd: "/",
      ...given({ timeout }),
      ...network,
    });
    const operation = await successOf(client, { io, id: run.id, label: "preparing" });
    const result = operation.result as InstanceResult;
    const { image: uuid } = result;
    if (result.exit_code !== 0 || uuid === undefined) throw new CliError(failureOf(run.id, result));
    const row = await answerOf(client.v1.images({ uuid }).tag.patch({ tag: name }));
    await io.stdout(options.json === true ? `${JSON.stringify(row)}\n` : `${uuid}\n`);
    const missing = textOf(result.stdout ?? NOTHING)
      .split("\n")
      .filter(Boolean);
    if (missing.length === 0) return 0;
    const hint = hasNetwork ? "" : "; --network allows apt-get to install it";
    io.stderr(`coppice e2b template base: ${name} has no ${missing.join(", ")}${hint}\n`);
    return 0;
  },
});

const NOTHING = { content: "", encoding: "ascii", truncated: false } as const;

function failureOf(id: string, { exit_code, timed_out, stderr = NOTHING }: InstanceResult): string {
  if (timed_out) return `the time limit was hit; coppice logs ${id} shows the output`;
  const last = textOf(stderr).trimEnd().split("\n").at(-1);
  return `the run ended with exit code ${exit_code}: ${last}; coppice logs ${id} shows the output`;
}
