import manifest from "../package.json" with { type: "json" };

/** Commit that the build was made from; the build sets it, and there is none when running from source. */
declare const BUILD_REVISION: string | undefined;

export const VERSION: string = manifest.version;
export const REVISION: string = typeof BUILD_REVISION === "string" ? BUILD_REVISION : "source";
