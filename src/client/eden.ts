/** A route as Elysia's types tell it. */
interface TypedRoute {
  readonly body: unknown;
  readonly query: unknown;
  readonly response: Readonly<Record<number, unknown>>;
}

type Success = 200 | 201 | 202 | 204 | 206;

/** What Eden gives for an answer: its JSON, or what the appliance refused it with. `answerOf` tells them apart. */
export type Answer<Data> =
  | { readonly data: Data; readonly error: null; readonly response: Response; readonly status: number }
  | {
      readonly data: null;
      readonly error: { readonly status: number; readonly value: unknown };
      readonly response: Response;
      readonly status: number;
    };

/** What has no field that must be there. */
type Omissible<Fields> = Partial<Fields> extends Fields ? true : false;

interface Exchange {
  /** goes on to `fetch`, such as the signal */
  readonly fetch?: RequestInit;
}
/** Paths are texts here: the appliance has bytes, which are marked texts for it. */
type Texts<Query> = { readonly [Name in keyof Query]: TextOf<Query[Name]> };
type TextOf<Value> = Value extends string
  ? string extends FirstOf<Value>
    ? string
    : Value
  : Value extends readonly (infer Item)[]
    ? readonly TextOf<Item>[]
    : Value;
/** Of a text that is known when it is compiled; `string` for any other. */
type FirstOf<Text extends string> = Text extends `${infer First}${string}` ? First : string;
type QueryOf<Query> =
  Omissible<Query> extends true
    ? [keyof Query] extends [never]
      ? unknown
      : { readonly query?: Texts<Query> }
    : { readonly query: Texts<Query> };
type Asked<Query> = Exchange & QueryOf<Query>;

/** What is no JSON is for `Client.call`. */
type JsonOf<Data> = Data extends Response ? unknown : Data;
type Given<Route extends TypedRoute> = Promise<
  Answer<JsonOf<Route["response"][Extract<keyof Route["response"], Success>]>>
>;

/** A body and a query that may be left out are. */
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

/** The parameter of a path that `:name` stands for. */
type ParametersOf<Name> = Name extends `:${infer Parameter}` ? { readonly [Key in Parameter]: string | number } : never;

/**
 * The functions that Eden makes of the types of routes. Its own type of them does the same, but compiles slowly, and has the
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
