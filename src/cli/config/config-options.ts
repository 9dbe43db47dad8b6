import {
  type Config,
  type ConfigSources,
  type Environment,
  flagOf,
  keyNames,
  loadConfig,
} from "../../config/config.ts";
import { KEYS } from "../../config/keys.ts";
import { given } from "../../domain/given.ts";
import { DURATION_FORM, SIZE_FORM } from "../../domain/text/quantities.ts";
import type { OptionSpec } from "../command.ts";

/** Placeholders of values in the help, by the beginning of the form of a setting's value; others have `VALUE`. */
const PLACEHOLDERS = [
  ["a path", "FILE"],
  [SIZE_FORM, "SIZE"],
  [DURATION_FORM, "DURATION"],
] as const;

/** `--config`, and one flag for each setting. */
export const CONFIG_OPTIONS: Readonly<Record<string, OptionSpec>> = {
  config: { type: "string", value: "FILE", doc: "TOML file (default: /etc/coppice/config.toml)" },
  ...Object.fromEntries(
    keyNames().map((name): [string, OptionSpec] => [
      flagOf(name),
      { type: "string", ...shownValueOf(KEYS[name].form), doc: KEYS[name].doc.replaceAll("`", "") },
    ]),
  ),
};

/** The placeholder and the choices that help and completion show for the form of a setting's value. */
function shownValueOf(form: string): Pick<OptionSpec, "value" | "choices"> {
  const [, placeholder = null] = PLACEHOLDERS.find(([beginning]) => form.startsWith(beginning)) ?? [];
  if (placeholder !== null) return { value: placeholder };
  const words = /^one of (.+)$/.exec(form)?.[1]?.split(", ") ?? (form === "true or false" ? ["true", "false"] : null);
  return { value: "VALUE", ...given({ choices: words }) };
}

/** Flags by which commands other than `serve` find the data directory. */
export const DATA_OPTIONS = {
  config: { type: "string", value: "FILE", doc: "TOML file (default: /etc/coppice/config.toml)" },
  "data-dir": { type: "string", value: "DIR", doc: "data directory of the appliance" },
} as const;

type Values = Readonly<Record<string, string | boolean | string[] | undefined>>;

/** Sources of the configuration, from the options of a command. */
export function sourcesOf(options: Values, environment: Environment): ConfigSources {
  const { config: file, ...rest } = options;
  const flags = Object.fromEntries(
    Object.entries(rest).filter((entry): entry is [string, string] => typeof entry[1] === "string"),
  );
  return { environment, flags, file: typeof file === "string" ? file : undefined };
}

/** @throws ConfigError */
export function configOf(options: Values, environment: Environment): Config {
  return loadConfig(sourcesOf(options, environment));
}
