/** The problems of a message, by their place in it. */
export interface Problem {
  readonly path: string;
  readonly message: string;
}

interface Schema {
  readonly $ref?: string;
  readonly type?: string;
  readonly enum?: readonly unknown[];
  readonly required?: readonly string[];
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: Schema;
  readonly items?: Schema;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly minLength?: number;
}

interface Operation {
  readonly requestBody?: { readonly content: Readonly<Record<string, { readonly schema: Schema }>> };
  readonly responses: Readonly<
    Record<string, { readonly content?: Readonly<Record<string, { readonly schema: Schema }>> }>
  >;
}

interface Document {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: { readonly schemas: Readonly<Record<string, Schema>> };
}

const JSON_TYPE = "application/json";
const REFERENCE = "#/components/schemas/";

/**
 * Checks messages against an OpenAPI document. It is stricter than the described program: a property that the document does
 * not list is a problem, while the program drops it silently.
 */
export class ApiDescription {
  readonly #document: Document;

  constructor(yaml: string) {
    this.#document = Bun.YAML.parse(yaml) as Document;
  }

  /** Whether the call exists. */
  has(method: string, endpoint: string): boolean {
    return this.#operation(method, endpoint) !== undefined;
  }

  /** The problems of a request's body; undefined without a body. */
  checkRequest(method: string, endpoint: string, body: unknown): Problem[] {
    const operation = this.#operation(method, endpoint);
    if (operation === undefined) return [{ path: "", message: `there is no ${method} ${endpoint}` }];
    const schema = operation.requestBody?.content[JSON_TYPE]?.schema;
    if (schema === undefined) return body === undefined ? [] : [{ path: "", message: "it takes no body" }];
    if (body === undefined) return [{ path: "", message: "the body is missing" }];
    return this.#check(schema, body, "");
  }

  /** The problems of an answer. Only the status of errors is checked, since their bodies are not described. */
  checkResponse(method: string, endpoint: string, status: number, body: unknown): Problem[] {
    const response = this.#operation(method, endpoint)?.responses[String(status)];
    if (status >= 400) return [];
    if (response === undefined) return [{ path: "", message: `status ${status} is not described` }];
    const schema = response.content?.[JSON_TYPE]?.schema;
    if (schema === undefined) return body === undefined ? [] : [{ path: "", message: "it answers without a body" }];
    return this.#check(schema, body, "");
  }

  /** The problems of a value of a named schema. */
  checkSchema(name: string, value: unknown): Problem[] {
    return this.#check({ $ref: `${REFERENCE}${name}` }, value, "");
  }

  #operation(method: string, endpoint: string): Operation | undefined {
    return this.#document.paths[`/${endpoint}`]?.[method.toLowerCase()];
  }

  #check(reference: Schema, value: unknown, path: string): Problem[] {
    const schema = this.#resolve(reference);
    const problem = (message: string): Problem[] => [{ path, message }];
    if (schema.enum !== undefined && !schema.enum.includes(value)) {
      return problem(`${JSON.stringify(value)} is none of ${JSON.stringify(schema.enum)}`);
    }
    switch (schema.type) {
      case "string":
        if (typeof value !== "string") return problem("not a string");
        return value.length < (schema.minLength ?? 0) ? problem("too short") : [];
      case "boolean":
        return typeof value === "boolean" ? [] : problem("not a boolean");
      case "integer":
        return checkInteger(schema, value, problem);
      case "array":
        if (!Array.isArray(value)) return problem("not an array");
        return value.flatMap((item, index) => this.#check(schema.items ?? {}, item, `${path}[${index}]`));
      case "object":
        if (typeof value !== "object" || value === null || Array.isArray(value)) return problem("not an object");
        return this.#checkObject(schema, value as Record<string, unknown>, path);
      default:
        return problem(`the description has a type that is not known here: ${schema.type}`);
    }
  }

  #checkObject(schema: Schema, value: Record<string, unknown>, path: string): Problem[] {
    const missing = (schema.required ?? []).filter((name) => value[name] === undefined);
    const problems = missing.map((name) => ({ path: `${path}.${name}`, message: "missing" }));
    for (const [name, each] of Object.entries(value)) {
      const property = schema.properties?.[name] ?? schema.additionalProperties;
      // Objects without a description accept anything, such as Rust enums with data.
      const anything = schema.properties === undefined && schema.additionalProperties === undefined;
      if (property !== undefined) problems.push(...this.#check(property, each, `${path}.${name}`));
      else if (!anything) problems.push({ path: `${path}.${name}`, message: "not a known property" });
    }
    return problems;
  }

  #resolve(schema: Schema): Schema {
    if (schema.$ref === undefined) return schema;
    const target = this.#document.components.schemas[schema.$ref.slice(REFERENCE.length)];
    if (target === undefined) throw new Error(`the description has no ${schema.$ref}`);
    return this.#resolve(target);
  }
}

function checkInteger(schema: Schema, value: unknown, problem: (message: string) => Problem[]): Problem[] {
  if (!Number.isSafeInteger(value)) return problem("not an integer");
  if ((value as number) < (schema.minimum ?? -Infinity)) return problem(`below ${schema.minimum}`);
  return (value as number) > (schema.maximum ?? Infinity) ? problem(`above ${schema.maximum}`) : [];
}
