import { type Config, ConfigError, loadConfig } from "../../src/config/config.ts";

/** The settings of a command line, without a file or an environment. @throws ConfigError */
export function configOf(flags: Readonly<Record<string, string>>): Config {
  return loadConfig({ environment: {}, file: "/dev/null", flags });
}

/** The problems of the settings of a command line. */
export function configProblems(flags: Readonly<Record<string, string>>): readonly string[] {
  try {
    configOf(flags);
    return [];
  } catch (error) {
    if (error instanceof ConfigError) return error.problems;
    throw error;
  }
}
