/** A route in Elysia's types. */
interface TypedRoute {
  readonly body: unknown;
  readonly query: unknown;
  readonly response: Readonly<Record<number, unknown>>;
}

type Success = 200 | 201 | 202 | 204 | 206;

/** Eden's result for an answer: its JSON, or the error of the appliance. `answerOf` distinguishes them. */
export type Answer<Data> =
  | { readonly data: Data; readonly error: null; readonly response: Response; readonly status: number }
  | {
      readonly data: null;
      readonly error: { readonly status: number; readonly value: unknown };
      readonly response: Response;
      readonly status: number;
    };

/** A type without required fields. */
type Omissible<Fields> = Partial<Fields> extends Fields ? true : false;

interface Exchange {
  /** options for `fetch`, such as the signal */
  readonly fetch?: RequestInit;
}
/** Paths are texts here, and byte strings, a branded type, in the appliance. */
type Texts<Query> = { readonly [Name in keyof Query]: TextOf<Query[Name]> };
type TextOf<Value> = Value extends string
  ? string extends FirstOf<Value>
    ? string
    : Value
  : Value extends readonly (infer Item)[]
    ? readonly TextOf<Item>[]
    : Value;
/** The type of a literal text; `string` for any other. */
type FirstOf<Text extends string> = Text extends `${infer First}${string}` ? First : string;
type QueryOf<Query> =
  Omissible<Query> extends true
    ? [keyof Query] extends [never]
      ? unknown
      : { readonly query?: Texts<Query> }
    : { readonly query: Texts<Query> };
type Asked<Query> = Exchange & QueryOf<Query>;

/** The JSON answers; `Client.call` is for all others. */
type JsonOf<Data> = Data extends Response ? unknown : Data;
type Given<Route extends TypedRoute> = Promise<
  Answer<JsonOf<Route["response"][Extract<keyof Route["response"], Success>]>>
>;

/** Makes a body and a query optional if they have no required fields. */
type Call<Route extends TypedRoute, Method> = Method extends "get" | "head"
  ? Omissible<Route["query"]> extends true
    ? (options?: Asked<Route["query"]>) => Given<Route>
    : (options: Asked<Route["query"]>) => Given<Route>
  : Omissible<Route["query"]> extends true
    ? Omissible<Route["body"]> extends true
      ? (body?: Route["body"], options?: Asked<Route["query"]>) => Given<Route>
      : (body: Route["body"], options?: Asked<Route["query"]>) => Given<Route>
    : (body: Route["body"], options: Asked<Route["query"]>) => Given<Route>;

type Names<Routes> = {
  [Name in keyof Routes as Name extends `:${string}` | "" ? never : Name]: Routes[Name] extends TypedRoute
    ? Call<Routes[Name], Name>
    : Calls<Routes[Name]>;
};

/** The parameter of a path with the placeholder `:name`. */
type ParametersOf<Name> = Name extends `:${infer Parameter}` ? { readonly [Key in Parameter]: string | number } : never;

/**
 * The functions that Eden derives from the types of routes. Eden's own type does the same, but compiles slowly, and has the
 * errors of Elysia's validation where an appliance answers with its own.
 */
export type Calls<Routes> =
  Extract<keyof Routes, `:${string}`> extends infer Name
    ? [Name] extends [never]
      ? Names<Routes>
      : Name extends keyof Routes
        ? ((params: ParametersOf<Name>) => Calls<Routes[Name]>) & Names<Routes>
        : never
    : never;
