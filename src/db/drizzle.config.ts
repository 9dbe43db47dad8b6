import { defineConfig } from "drizzle-kit";

// `bunx drizzle-kit generate --config src/db/drizzle.config.ts --name <what-changed>`, then list the new file in migrations.ts.
// biome-ignore lint/style/noDefaultExport: drizzle-kit reads the default export
export default defineConfig({
  dialect: "sqlite",
  schema: [
    ...["./src/db/schema.ts", "./src/db/sandboxes/schema.ts"],
    ...["./src/db/e2b/schema.ts", "./src/db/templates/schema.ts"],
  ],
  out: "./src/db/migrations",
});
