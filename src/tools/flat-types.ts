import ts from "typescript";

/** Deepest nesting of types that is written: a type that contains itself has no end. */
const DEPTH_MAX = 40;
const PRIMITIVE =
  ts.TypeFlags.Any |
  ts.TypeFlags.Unknown |
  ts.TypeFlags.StringLike |
  ts.TypeFlags.NumberLike |
  ts.TypeFlags.BooleanLike |
  ts.TypeFlags.BigIntLike |
  ts.TypeFlags.Null |
  ts.TypeFlags.Undefined |
  ts.TypeFlags.Void |
  ts.TypeFlags.Never;

/** A type that is written in place of an alias, which it must equal. */
export interface Replacement {
  readonly alias: string;
  readonly name: string;
}

/**
 * Writes the exported types of a module as declarations that refer only to each other and to the types of every runtime.
 * All other types in them are written out.
 */
export class FlatTypes {
  readonly #checker: ts.TypeChecker;
  readonly #source: ts.SourceFile;
  readonly #replacements: ReadonlyMap<string, string>;
  /** names by the text of the type */
  readonly #names = new Map<string, string>();

  constructor(program: ts.Program, path: string, replacements: readonly Replacement[]) {
    const source = program.getSourceFile(path);
    if (source === undefined) throw new Error(`the program has no ${path}`);
    this.#checker = program.getTypeChecker();
    this.#source = source;
    this.#replacements = new Map(replacements.map(({ alias, name }) => [alias, name]));
  }

  /** @throws Error for a type that cannot be written */
  declarations(): string {
    const checker = this.#checker;
    const module = checker.getSymbolAtLocation(this.#source);
    if (module === undefined) throw new Error(`${this.#source.fileName} exports nothing`);
    const exported = checker.getExportsOfModule(module).map((symbol) => {
      const type = checker.getDeclaredTypeOfSymbol(symbol);
      return { symbol, type, length: this.#text(type, 0).length };
    });
    const declared = new Map<ts.Symbol, string>();
    // A type may contain only shorter ones.
    for (const { symbol, type } of exported.toSorted((a, b) => a.length - b.length)) {
      const text = this.#text(type, 0);
      declared.set(symbol, `export type ${symbol.name} = ${text};`);
      if (text.startsWith("{") && !this.#names.has(text)) this.#names.set(text, symbol.name);
    }
    const texts = exported.map(({ symbol }) => `${documentation(symbol, checker)}${declared.get(symbol)}\n`);
    const file = ts.createSourceFile("flat.ts", texts.join("\n"), ts.ScriptTarget.ESNext);
    return ts.createPrinter().printFile(file);
  }

  /** The text of a type, or the name that it has. */
  #text(type: ts.Type, depth: number): string {
    if (depth > DEPTH_MAX) throw new Error(`${this.#checker.typeToString(type)} does not end`);
    const text = this.#structure(type, depth + 1);
    return this.#names.get(text) ?? text;
  }

  #structure(type: ts.Type, depth: number): string {
    const checker = this.#checker;
    const replacement = this.#replacements.get(type.aliasSymbol?.name ?? "");
    if (replacement !== undefined) {
      return `${replacement}<${(type.aliasTypeArguments ?? []).map((argument) => this.#text(argument, depth)).join(", ")}>`;
    }
    if (type.isStringLiteral()) return JSON.stringify(type.value);
    if ((type.flags & PRIMITIVE) !== 0) return checker.typeToString(type);
    if (type.isUnion()) return this.#union(type, depth);
    if (type.isIntersection() && type.types.some(({ flags }) => (flags & PRIMITIVE) !== 0)) {
      // A text with a mark that only types have.
      return type.types.map((part) => `(${this.#text(part, depth)})`).join(" & ");
    }
    if (checker.isTupleType(type)) {
      const elements = checker.getTypeArguments(type as ts.TypeReference).map((element) => this.#text(element, depth));
      return `[${elements.join(", ")}]`;
    }
    if (checker.isArrayType(type)) {
      const [element] = checker.getTypeArguments(type as ts.TypeReference);
      const isReadonly = type.symbol.name === "ReadonlyArray";
      const text = element === undefined ? "never" : this.#text(element, depth);
      return `${isReadonly ? "readonly " : ""}${/^[\w"]+$/.test(text) ? text : `(${text})`}[]`;
    }
    if (isGlobal(type.symbol)) {
      const parameters = checker
        .getTypeArguments(type as ts.TypeReference)
        .map((argument) => this.#text(argument, depth));
      return `${type.symbol.name}${parameters.length === 0 ? "" : `<${parameters.join(", ")}>`}`;
    }
    return this.#object(type, depth);
  }

  /** `true | false` is written as it was declared. */
  #union(type: ts.UnionType, depth: number): string {
    const texts = new Set(type.types.map((part) => this.#text(part, depth)));
    const isBoolean = texts.has("true") && texts.has("false");
    if (isBoolean) for (const half of ["true", "false"]) texts.delete(half);
    return [...texts, ...(isBoolean ? ["boolean"] : [])]
      .map((text) => (text.includes("=>") ? `(${text})` : text))
      .join(" | ");
  }

  /** An object or an intersection of objects, with its call signatures. */
  #object(type: ts.Type, depth: number): string {
    const checker = this.#checker;
    const calls = checker
      .getSignaturesOfType(type, ts.SignatureKind.Call)
      .map((signature) => this.#signature(signature, depth, ": "));
    const indexes = checker
      .getIndexInfosOfType(type)
      .map((info) => `[key: ${this.#text(info.keyType, depth)}]: ${this.#text(info.type, depth)}`);
    const properties = checker
      .getPropertiesOfType(type)
      // Eden stores there what only its types need.
      .filter(({ name }) => !name.startsWith("~"))
      .map((property) => this.#property(property, depth));
    const [call] = calls;
    if (call !== undefined && calls.length === 1 && indexes.length + properties.length === 0) {
      return this.#signature(
        checker.getSignaturesOfType(type, ts.SignatureKind.Call)[0] as ts.Signature,
        depth,
        " => ",
      );
    }
    return `{ ${[...calls, ...indexes, ...properties].map((member) => `${member}; `).join("")}}`;
  }

  #property(property: ts.Symbol, depth: number): string {
    const name = /^[A-Za-z_$][\w$]*$/.test(property.name) ? property.name : JSON.stringify(property.name);
    const isOptional = (property.flags & ts.SymbolFlags.Optional) !== 0;
    return `${name}${isOptional ? "?" : ""}: ${this.#given(this.#checker.getTypeOfSymbol(property), isOptional, depth)}`;
  }

  #signature(signature: ts.Signature, depth: number, result: ": " | " => "): string {
    const parameters = signature.parameters.map((parameter) => {
      const { valueDeclaration: declaration } = parameter;
      const isOptional =
        declaration !== undefined && ts.isParameter(declaration) && this.#checker.isOptionalParameter(declaration);
      const type = this.#given(this.#checker.getTypeOfSymbol(parameter), isOptional, depth);
      return `${parameter.name}${isOptional ? "?" : ""}: ${type}`;
    });
    return `(${parameters.join(", ")})${result}${this.#text(signature.getReturnType(), depth)}`;
  }

  /** The type without the `undefined` of an optional property. */
  #given(type: ts.Type, isOptional: boolean, depth: number): string {
    if (!isOptional || !type.isUnion()) return this.#text(type, depth);
    const defined = type.types.filter((part) => (part.flags & ts.TypeFlags.Undefined) === 0);
    const texts = new Set(defined.map((part) => this.#text(part, depth)));
    if (texts.delete("true") && texts.delete("false")) texts.add("boolean");
    return [...texts].join(" | ");
  }
}

/** True for global types, such as `Promise`. */
function isGlobal(symbol: ts.Symbol | undefined): boolean {
  const [declaration] = symbol?.declarations ?? [];
  if (symbol === undefined || declaration === undefined || symbol.name.startsWith("__")) return false;
  const file = declaration.getSourceFile();
  if (!ts.isExternalModule(file)) return declaration.parent === file;
  const { parent } = declaration;
  return ts.isModuleBlock(parent) && ts.isModuleDeclaration(parent.parent) && parent.parent.name.text === "global";
}

function documentation(symbol: ts.Symbol, checker: ts.TypeChecker): string {
  const text = ts.displayPartsToString(symbol.getDocumentationComment(checker));
  return text === "" ? "" : `/** ${text.replaceAll(/\s*\n\s*/g, " ")} */\n`;
}
