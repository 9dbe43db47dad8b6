import { readFile } from "node:fs/promises";
import { answerOf } from "../../client/client.ts";
import { imageIdOf } from "../../client/transfers.ts";
import type { ReceiptOutcome, ReceiptStep, Statement } from "../../domain/receipts/statement.ts";
import { shellWord } from "../../domain/text/shell-word.ts";
import { keyIdOf, parseKey, ReceiptError, verifyReceipt } from "../../storage/receipts/verification.ts";
import { CLIENT_OPTIONS, openClient } from "../client.ts";
import {
  CliError,
  type Command,
  command,
  EXIT_FAILED,
  expectPositionals,
  JSON_OPTION,
  UsageError,
} from "../command.ts";
import { printable, table } from "../table.ts";

/** Commands about receipts. Those of two words come first: the first command whose words match is run. */
export const receiptCommands: readonly Command[] = [
  command({
    name: "receipt verify",
    summary: "verify a receipt without an appliance, and show what it says",
    synopsis: "FILE --key KEY [OPTIONS]",
    description:
      "FILE is a receipt that coppice receipt wrote. KEY is the file of the appliance's public key (coppice receipt\n" +
      "key), which you must have from a source that you trust. Nothing is asked over the network.\n" +
      "The exit code is 1 when the receipt was changed, or another key signed it.",
    examples: ["coppice receipt verify receipt.json --key appliance.pem"],
    options: {
      key: { type: "string", value: "FILE", doc: "public key in PEM (required)" },
      digest: { type: "string", value: "DIGEST", doc: "also require this digest of the image: sha256:..." },
      ...JSON_OPTION,
    },
    async run({ options, positionals, io }) {
      const [path = ""] = expectPositionals(positionals, "FILE");
      if (options.key === undefined) throw new UsageError("--key is missing");
      const texts = [await textOf(path), await textOf(options.key)] as const;
      const { statement, keyId } = verified(...texts);
      const digest = digestOf(statement);
      if (options.digest !== undefined && options.digest !== digest) {
        throw new CliError(`the receipt is of another image: ${digest}`);
      }
      await io.stdout(
        options.json === true ? `${JSON.stringify(statement)}\n` : shownStatement(statement, keyId, io.columns),
      );
      return 0;
    },
  }),
  command({
    name: "receipt key",
    summary: "print the public key that verifies the appliance's receipts",
    synopsis: "[OPTIONS]",
    description: "The key is in PEM. Give it to those who are to verify receipts.",
    examples: ["coppice receipt key > appliance.pem"],
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const client = openClient(environment, options.url);
      const key = await answerOf(client.v1.receipts.key.get());
      await io.stdout(options.json === true ? `${JSON.stringify(key)}\n` : key.public_key);
      return 0;
    },
  }),
  command({
    name: "receipt",
    summary: "write a signed statement of how an image came to be",
    synopsis: "IMAGE > FILE",
    description:
      "IMAGE is a UUID or tag:NAME. The receipt is an in-toto statement with SLSA provenance in a DSSE envelope. It\n" +
      "has every step from the import on, and says what it does not prove. Its subject is the manifest of the archive\n" +
      "that coppice image save writes.",
    examples: ["coppice receipt tag:release > receipt.json"],
    options: { ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [reference = ""] = expectPositionals(positionals, "IMAGE");
      const client = openClient(environment, options.url);
      const image = encodeURIComponent(await imageIdOf(client, reference));
      // Digests of large layers take minutes when they are computed for the first time.
      const response = await client.call("GET", `/images/${image}/receipt`, { deadline: false });
      await io.stdout(`${await response.text()}\n`);
      return 0;
    },
  }),
];

async function textOf(path: string): Promise<string> {
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    throw new CliError(`cannot read ${path}: ${(error as Error).message}`, EXIT_FAILED, { cause: error });
  }
}

function verified(receipt: string, pem: string): { readonly statement: Statement; readonly keyId: string } {
  try {
    const key = parseKey(pem);
    return { statement: verifyReceipt(receipt, key), keyId: keyIdOf(key) };
  } catch (error) {
    if (error instanceof ReceiptError) throw new CliError(error.message, EXIT_FAILED, { cause: error });
    throw error;
  }
}

/** Digest of the manifest of the image that the statement is about. */
function digestOf({ subject: [image] }: Statement): string {
  const [[algorithm, value] = ["", ""]] = Object.entries(image?.digest ?? {});
  return `${algorithm}:${value}`;
}

function shownStatement(statement: Statement, keyId: string, columns: number | null): string {
  const { buildDefinition, runDetails } = statement.predicate;
  const [image] = statement.subject;
  const outcomes = runDetails.byproducts.flatMap(({ annotations }) =>
    annotations !== undefined && "step" in annotations ? [annotations as unknown as ReceiptOutcome] : [],
  );
  const byStep = new Map(outcomes.map((outcome) => [outcome.step, outcome]));
  const rows = buildDefinition.externalParameters.steps.map((step) => rowOf(step, byStep.get(step.step)));
  const { coppice = "" } = runDetails.builder.version;
  return (
    `verified: the signature is one of key ${keyId}\n` +
    `image:    ${printable(image?.name ?? "")} ${digestOf(statement)}\n` +
    `version:  ${printable(coppice)}\n\n` +
    `${table(["STEP", "FINISHED", "EXIT", "ISOLATION", "NETWORK", "MADE BY"], rows, columns)}\n` +
    "It does not prove:\n" +
    buildDefinition.internalParameters.notProven.map((text) => `- ${printable(text)}\n`).join("")
  );
}

function rowOf(step: ReceiptStep, outcome: ReceiptOutcome | undefined): string[] {
  const network = outcome?.network ?? "-";
  const hosts = typeof network === "string" ? network : network.reached.map(({ host, port }) => `${host}:${port}`);
  const more = step.commandTruncated === true ? " …" : "";
  return [
    String(step.step),
    outcome?.finishedOn ?? "-",
    outcome?.exitCode === undefined ? "-" : String(outcome.exitCode),
    outcome?.isolation ?? "-",
    typeof hosts === "string" ? hosts : hosts.join(" ") || "nothing reached",
    step.command === undefined ? (step.source ?? step.kind) : `${step.command.map(shellWord).join(" ")}${more}`,
  ];
}
