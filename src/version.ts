import manifest from "../package.json" with { type: "json" };

/** The commit of the build. The build defines it; it is undefined when running from source. */
declare const BUILD_REVISION: string | undefined;

export const VERSION: string = manifest.version;
export const REVISION: string = typeof BUILD_REVISION === "string" ? BUILD_REVISION : "source";
