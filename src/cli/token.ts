import { existsSync } from "node:fs";
import { chmod, mkdir } from "node:fs/promises";
import { dirname } from "node:path";
import { tokenFileOf } from "../config/client.ts";
import type { Environment } from "../config/config.ts";
import type { Database } from "../db/database.ts";
import { Accounts } from "../domain/account/accounts.ts";
import { ApiError } from "../domain/errors.ts";
import { isoTime } from "../domain/ids.ts";
import { SCOPES } from "../domain/scope.ts";
import { DURATION_FORM, msOfDuration } from "../domain/text/quantities.ts";
import { silentLog } from "../log.ts";
import { keyOfToken } from "../service/e2b/keys.ts";
import type { TokenUseCases } from "../service/operator/tokens.ts";
import type { Principal } from "../service/parts.ts";
import type { DataLayout } from "../storage/layout.ts";
import { CliError, type Command, command, expectPositionals, JSON_OPTION, UsageError } from "./command.ts";
import { configOf, DATA_OPTIONS } from "./config/config-options.ts";
import { table } from "./table.ts";

const TTL_DEFAULT = "30d";

/** Description of commands that work on the data directory, with or without a running appliance. */
const HERE = "Works on the data directory of this machine, whether the appliance runs or not.";

export const tokenCommands: readonly Command[] = [
  command({
    name: "token create",
    summary: "make an access token",
    synopsis: "--account NAME [OPTIONS]",
    description: `${HERE}\nThe token is printed once, alone on standard output, and stored nowhere.`,
    examples: [
      "coppice token create --account alice --save",
      "export E2B_API_KEY=$(coppice token create --account alice --e2b)",
      "coppice token create --account me --scope '*' --scope operator --ttl 12h",
      "export COPPICE_TOKEN=$(coppice token create --account ci --scope instances:spawn --scope operations:read)",
    ],
    options: {
      account: { type: "string", value: "NAME", doc: "account of the token; it owns all objects made with the token" },
      scope: {
        type: "string",
        multiple: true,
        value: "SCOPE",
        choices: SCOPES,
        doc: "permission; * for all except operator (default: *)",
      },
      ttl: { type: "string", value: "DURATION", doc: `validity, such as 12h or 90d (default: ${TTL_DEFAULT})` },
      e2b: { type: "boolean", doc: "spell it as clients of E2B want their keys" },
      save: { type: "boolean", doc: "write it to ~/.config/coppice/token instead of printing it" },
      ...JSON_OPTION,
      ...DATA_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const { account, scope = ["*"], ttl = TTL_DEFAULT, save = false, e2b = false, json = false, ...rest } = options;
      if (account === undefined) throw new UsageError("--account is missing");
      if (e2b && save) throw new UsageError("--save is for this program, and --e2b for others");
      const request = { account, scopes: scope, ttlMs: durationOption("ttl", ttl) };
      using store = await openStore(rest, environment, { create: true });
      const { token: issued, jti, expiresAt } = await usage(() => store.tokens.issue(store.operator, request));
      const token = e2b ? keyOfToken(issued) : issued;
      if (save) await saveToken(environment, token);
      const facts = { id: jti, account, scopes: scope, expires_at: isoTime(expiresAt) };
      if (json) await io.stdout(`${JSON.stringify({ ...facts, ...(save ? {} : { token }) })}\n`);
      else if (!save) await io.stdout(`${token}\n`);
      const where = save ? `, saved to ${tokenFileOf(environment)}` : "";
      io.stderr(`token ${jti} for ${account}, valid until ${isoTime(expiresAt)}${where}\n`);
      return 0;
    },
  }),
  command({
    name: "token list",
    summary: "list all tokens",
    synopsis: "[OPTIONS]",
    description: HERE,
    options: {
      account: { type: "string", value: "NAME", doc: "only tokens of this account" },
      ...JSON_OPTION,
      ...DATA_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const { account, json = false, ...rest } = options;
      using store = await openStore(rest, environment);
      const rows = store.tokens.list({ account }).map((row) => ({
        id: row.jti,
        account: row.accountId,
        scopes: row.scopes,
        issued_at: isoTime(row.issuedAt),
        expires_at: isoTime(row.expiresAt),
        state: row.state,
      }));
      const cells = rows.map((row) => [row.id, row.account, row.state, row.expires_at, row.scopes.join(" ")]);
      await io.stdout(
        json ? `${JSON.stringify(rows)}\n` : table(["ID", "ACCOUNT", "STATE", "EXPIRES", "SCOPES"], cells, io.columns),
      );
      return 0;
    },
  }),
  command({
    name: "token revoke",
    summary: "revoke a token at once",
    synopsis: "ID [OPTIONS]",
    description: HERE,
    options: { ...JSON_OPTION, ...DATA_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [id = ""] = expectPositionals(positionals, "ID");
      const { json = false, ...rest } = options;
      using store = await openStore(rest, environment);
      if (!revoked(store, id)) throw new CliError(`there is no valid token ${id}`);
      if (json) await io.stdout(`${JSON.stringify({ id, state: "revoked" })}\n`);
      io.stderr(`token ${id} is revoked\n`);
      return 0;
    },
  }),
  command({
    name: "token rotate",
    summary: "change the key that signs tokens",
    synopsis: "[OPTIONS]",
    description: `${HERE}\nTokens signed by older keys stay valid for the grace period.`,
    options: {
      grace: {
        type: "string",
        value: "DURATION",
        doc: "validity of older tokens from now on, 0 to end them (default: 7d)",
      },
      ...JSON_OPTION,
      ...DATA_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const { grace = "7d", json = false, ...rest } = options;
      const graceMs = /^0[a-z]*$/.test(grace) ? 0 : durationOption("grace", grace);
      using store = await openStore(rest, environment);
      const id = await store.tokens.rotateKey(store.operator, graceMs);
      const end = isoTime(Date.now() + graceMs);
      if (json) await io.stdout(`${JSON.stringify({ key: id, older_tokens_end_at: end })}\n`);
      io.stderr(`new tokens are signed by key ${id}; older ones are valid until ${end}\n`);
      return 0;
    },
  }),
];

interface Store extends Disposable {
  readonly tokens: TokenUseCases;
  /** the operator who acts */
  readonly operator: Principal;
}

/** Revokes a token. Returns false for an unknown or already revoked token. */
function revoked({ tokens, operator }: Store, id: string): boolean {
  try {
    return tokens.revoke(operator, id);
  } catch (error) {
    if (error instanceof ApiError && error.code === "not_found") return false;
    throw error;
  }
}

/** Opens the database and the keys. They are loaded only here: most commands are clients and start faster without. */
async function openStore(
  options: Readonly<Record<string, string | boolean | string[] | undefined>>,
  environment: Environment,
  { create }: { readonly create: boolean } = { create: false },
): Promise<Store> {
  const config = configOf(options, environment);
  const { dataLayout, hasData } = await import("../storage/layout.ts");
  const { TokenKeys } = await import("../storage/token-keys.ts");
  const { tokenUseCases } = await import("../service/operator/tokens.ts");
  const { HOST_OPERATOR } = await import("../service/parts.ts");
  const layout = dataLayout(config.dataDir);
  try {
    if (!hasData(layout) && !create) throw new CliError(`there is no appliance's data in ${config.dataDir}`);
    await layout.ensure();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "EACCES" && code !== "EROFS" && code !== "EPERM") throw error;
    throw new CliError(`${config.dataDir} is not accessible: run this as the user that the appliance runs as (root)`);
  }
  const db = await openCurrent(layout);
  const keys = await TokenKeys.open(layout.keys);
  const tokens = tokenUseCases({ accounts: new Accounts(), db, keys, clock: Date.now, log: silentLog });
  return { tokens, operator: HOST_OPERATOR, [Symbol.dispose]: () => db[Symbol.dispose]() };
}

/**
 * Opens the database with this program's schema. The schema is upgraded only if no appliance uses the database: an
 * appliance of an older version could not use the new schema.
 */
async function openCurrent(layout: DataLayout): Promise<Database> {
  const { openDatabase, SchemaTooOldError } = await import("../db/database.ts");
  const { lockData } = await import("../storage/layout.ts");
  try {
    if (existsSync(layout.database)) return openDatabase(layout.database, "require", { sharesFile: true });
  } catch (error) {
    if (!(error instanceof SchemaTooOldError)) throw error;
  }
  using lock = await lockData(layout);
  if (lock === null) {
    throw new CliError(
      `the appliance that uses ${layout.root} is of an older version than this program: ` +
        "restart it with this version first, or use its own executable",
    );
  }
  return openDatabase(layout.database);
}

/** Runs work whose refused values are arguments of the command line. @throws UsageError, CliError */
async function usage<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof ApiError && error.code === "validation_error") throw new UsageError(error.message);
    if (error instanceof ApiError && error.code === "conflict") throw new CliError(error.message);
    throw error;
  }
}

function durationOption(name: string, text: string): number {
  const ms = msOfDuration(text);
  if (ms === null || ms === 0) throw new UsageError(`--${name} must be ${DURATION_FORM}`);
  return ms;
}

async function saveToken(environment: Environment, token: string): Promise<void> {
  const tokenFile = tokenFileOf(environment);
  await mkdir(dirname(tokenFile), { recursive: true, mode: 0o700 });
  await Bun.write(tokenFile, `${token}\n`, { mode: 0o600 });
  await chmod(tokenFile, 0o600);
}
