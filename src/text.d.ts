/** Files that the build embeds in the executable as text. */
declare module "*.service" {
  const text: string;
  // biome-ignore lint/style/noDefaultExport: a text import has a default export only.
  export default text;
}
declare module "*.conf" {
  const text: string;
  // biome-ignore lint/style/noDefaultExport: a text import has a default export only.
  export default text;
}
