//! The input as the derive sees it: fields with their options and their place in paths.

use proc_macro2::Span;
use quote::{ToTokens, format_ident};
use syn::ext::IdentExt;
use syn::{DataUnion, DeriveInput, Fields, Ident, Index, Member, Type};

use crate::attr;
use crate::ctxt::Ctxt;

pub struct Input<'a> {
    pub original: &'a DeriveInput,
    pub options: attr::Container,
    pub data: Data<'a>,
}

pub enum Data<'a> {
    Struct(Vec<Field<'a>>),
    Enum(Vec<Variant<'a>>),
    Union(&'a DataUnion),
}

pub struct Variant<'a> {
    pub ident: &'a Ident,
    pub options: attr::Variant,
    pub fields: Vec<Field<'a>>,
}

pub struct Field<'a> {
    pub original: &'a syn::Field,
    pub member: Member,
    pub options: attr::Field,
}

impl<'a> Input<'a> {
    /// Reads every attribute; mistakes in them go to `ctxt`.
    pub fn new(ctxt: &Ctxt, original: &'a DeriveInput) -> Self {
        let options = attr::Container::parse(ctxt, &original.attrs);
        let data = match &original.data {
            syn::Data::Struct(data) => Data::Struct(Field::all(ctxt, &data.fields)),
            syn::Data::Enum(data) => Data::Enum(data.variants.iter().map(|v| Variant::new(ctxt, v)).collect()),
            syn::Data::Union(data) => Data::Union(data),
        };
        Self { original, options, data }
    }

    /// The field of a residual struct's shortcut.
    pub fn shortcut(&self) -> Option<&Field<'a>> {
        let member = self.options.residual.as_ref()?.value.as_ref()?;
        self.data.fields().find(|field| field.member == *member)
    }
}

impl<'a> Data<'a> {
    pub fn fields(&self) -> impl Iterator<Item = &Field<'a>> {
        let (fields, variants) = match self {
            Self::Struct(fields) => (&fields[..], &[][..]),
            Self::Enum(variants) => (&[][..], &variants[..]),
            Self::Union(_) => (&[][..], &[][..]),
        };
        fields.iter().chain(variants.iter().flat_map(|variant| &variant.fields))
    }
}

impl<'a> Variant<'a> {
    fn new(ctxt: &Ctxt, original: &'a syn::Variant) -> Self {
        Self {
            ident: &original.ident,
            options: attr::Variant::parse(ctxt, &original.attrs),
            fields: Field::all(ctxt, &original.fields),
        }
    }

    /// The variant's segment of the path, if requested: by its own `rename`, or for all variants.
    pub fn key(&self, container: &attr::Container) -> Option<String> {
        let renamed = self.options.rename.as_ref().map(|rename| rename.value.value());
        renamed.or_else(|| container.named_variants.as_ref().map(|_| self.ident.unraw().to_string()))
    }
}

impl<'a> Field<'a> {
    fn all(ctxt: &Ctxt, fields: &'a Fields) -> Vec<Self> {
        fields.iter().enumerate().map(|(index, original)| Self::new(ctxt, index, original)).collect()
    }

    fn new(ctxt: &Ctxt, index: usize, original: &'a syn::Field) -> Self {
        let member = match &original.ident {
            Some(ident) => Member::Named(ident.clone()),
            None => Member::Unnamed(Index::from(index)),
        };
        Self { original, member, options: attr::Field::parse(ctxt, &original.attrs) }
    }

    pub fn ty(&self) -> &'a Type {
        &self.original.ty
    }

    /// `true` if visits skip the field, and therefore everything else does.
    pub fn is_skipped(&self) -> bool {
        self.options.skip.is_some()
    }

    /// `true` if the field is skipped even if it holds parameters.
    pub fn is_skipped_on_purpose(&self) -> bool {
        self.options.skip.as_ref().is_some_and(|skip| skip.value == attr::Skip::Parameters)
    }

    /// The name in the source, without `r#`.
    pub fn name(&self) -> String {
        match &self.member {
            Member::Named(ident) => ident.unraw().to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        }
    }

    /// The field's segment of the path, and its key in files.
    pub fn key(&self) -> String {
        self.options.rename.as_ref().map_or_else(|| self.name(), |rename| rename.value.value())
    }

    /// The token to underline for the field as a whole.
    pub fn tokens(&self) -> &dyn ToTokens {
        match &self.original.ident {
            Some(ident) => ident,
            None => &self.original.ty,
        }
    }

    /// A variable for the field's value.
    pub fn variable(&self) -> Ident {
        let mut variable = match &self.member {
            Member::Named(ident) => format_ident!("field_{}", ident.unraw()),
            Member::Unnamed(index) => format_ident!("field_{}", index.index),
        };
        variable.set_span(Span::mixed_site());
        variable
    }
}
