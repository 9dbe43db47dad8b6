/** Files that the build takes into the executable as text. */
declare module "*.service" {
  const text: string;
  // biome-ignore lint/style/noDefaultExport: this is how an imported text arrives.
  export default text;
}
declare module "*.conf" {
  const text: string;
  // biome-ignore lint/style/noDefaultExport: this is how an imported text arrives.
  export default text;
}
